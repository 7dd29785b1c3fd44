"""Registries that throttle one account, answer by GET alone, or take their time: what the service makes of them."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from extender.cluster.views import NODES, PODS
from extender.placement.gate import GATE, GATED_LABEL
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import Fault, FaultyRegistry, GuardedRegistry, HoldingRegistry
from testbed.images import Bundle, build_index, build_manifest
from tests.integration.cluster.api_server import Document, node
from tests.integration.service.caller import AMD64, Caller, kept, pod, with_names, with_nodes
from tests.integration.service.conftest import HOLDING, Cluster, StartService

pytestmark = pytest.mark.usefixtures("simulated_time")

RETRY = ("scheduler.unknown=retry", "scheduler.pending=retry")


def write_login(file: Path, registry: EmbeddedRegistry, login: str) -> None:
    auth = base64.b64encode(login.encode()).decode()
    file.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))


async def answer(caller: Caller, image: str) -> str:
    result = await caller.filter(with_nodes(pod(image)))
    return result["Error"] or "".join(kept(result))


def throttling(registry: GuardedRegistry, is_throttled: Callable[[str], bool], status: int) -> Fault:
    """Answers the accounts that have asked too often with that status, and with what the distribution-spec says."""

    async def throttle(request: web.BaseRequest) -> web.StreamResponse | None:
        token = request.headers["Authorization"].removeprefix("Bearer token-")
        if not is_throttled(registry.desk[int(token) - 1][1]):
            return None
        said = {"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}
        return web.json_response(said, status=status, headers={"Retry-After": "100"})

    return throttle


@pytest.mark.parametrize("status", [429, 400, 401, 403, 503])
async def test_a_login_that_is_added_is_tried_where_the_public_is_throttled(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Though the public has opened the image before; and without the login it is throttled, not denied."""
    monkeypatch.setattr("extender.service.resolving.TAG_SECONDS", 0.0)
    monkeypatch.setattr("extender.service.resolving.STALE_SECONDS", 0.0)
    (tmp_path / "config.json").write_text("{}")
    async with GuardedRegistry("", "ann:word") as registry:
        registry.add_manifest("app", "1", AMD64)
        image = f"{registry.host}/app:1"
        caller = await start_service(
            f"registry.docker_config={tmp_path / 'config.json'}", *RETRY, plain_http=registry.host
        )
        assert await answer(caller, image) == "ac"
        registry.fault = throttling(registry, lambda login: not login, status)
        await asyncio.sleep(1)
        assert "throttled" in await answer(caller, image)
        write_login(tmp_path / "config.json", registry, "ann:word")
        await eventually(lambda: answer(caller, image), lambda found: found == "ac")
        assert registry.desk[-1][1] == "ann:word"


async def close_at_head(request: web.BaseRequest) -> web.StreamResponse | None:
    if request.method == "HEAD":
        assert request.transport
        request.transport.abort()
    return None


async def hang_at_head(request: web.BaseRequest) -> web.StreamResponse | None:
    if request.method == "HEAD":
        await asyncio.sleep(3600)
    return None


@pytest.mark.parametrize("fault", [close_at_head, hang_at_head])
async def test_an_image_that_no_head_shows_is_confirmed_by_a_get(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("extender.service.resolving.TAG_SECONDS", 0.0)
    monkeypatch.setattr("extender.service.resolving.STALE_SECONDS", 0.0)
    async with FaultyRegistry(fault) as registry:
        registry.add_index("app", "1", [AMD64])
        caller = await start_service(*RETRY, "scheduler.wait_seconds=20", plain_http=registry.host)
        for gets in (1, 2):
            assert await answer(caller, f"{registry.host}/app:1") == "ac"
            assert registry.requests["GET manifests"] == gets
            await asyncio.sleep(1)


class Late(GuardedRegistry):
    """Takes so many seconds for every answer, also for tokens."""

    seconds = 0.0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(self.seconds)
        return await super().answer(request)


@pytest.mark.parametrize("seconds", [6.0, 8.0, 9.5])
@pytest.mark.parametrize("login", ["", "ann:word"], ids=["public", "login"])
async def test_an_image_of_a_slow_registry_becomes_known(
    start_service: StartService, tmp_path: Path, seconds: float, login: str
) -> None:
    """A challenge, a token, GET and the configuration: each is an answer in time, and so are all of them."""
    async with Late(login) as registry:
        registry.seconds = seconds
        registry.add_manifest("app", "1", AMD64)
        write_login(tmp_path / "config.json", registry, login or "ann:word")
        settings = [f"registry.docker_config={tmp_path / 'config.json'}"] if login else []
        caller = await start_service(*settings, *RETRY, plain_http=registry.host)
        began_at = asyncio.get_running_loop().time()
        await eventually(lambda: answer(caller, f"{registry.host}/app:1"), lambda found: found == "ac")
        assert asyncio.get_running_loop().time() - began_at < 60


def without_platform(index: Bundle, child: Bundle) -> Bundle:
    """The index with one more child, of whose platform it says nothing."""
    body = json.loads(index.manifests[-1].body)
    unstated = child.manifests[-1]
    entry = {"mediaType": unstated.media_type, "digest": unstated.digest, "size": len(unstated.body)}
    body["manifests"].insert(0, entry)
    manifest = index.manifests[-1]._replace(body=json.dumps(body).encode())
    return Bundle((*index.blobs, *child.blobs), (*index.manifests[:-1], *child.manifests, manifest))


async def close(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def hang(_request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


def says(status: int, text: str = "") -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def say(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type="text/html")

    return say


@pytest.mark.parametrize(
    "trouble", [says(500), says(503), close, says(200, "<html>"), hang],
    ids=["500", "503", "closed", "html", "mute"],
)  # fmt: skip
async def test_what_an_index_states_is_known_whatever_becomes_of_another_child(
    start_service: StartService, trouble: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> None:
    """And the child counts once the registry gives it."""
    child = build_manifest("linux/s390x")

    async def fault(request: web.BaseRequest) -> web.StreamResponse | None:
        return await trouble(request) if child.digest in request.path else None

    async with FaultyRegistry(fault) as registry:
        registry.add("app", "1", without_platform(build_index([AMD64]), child))
        image = f"{registry.host}/app:1"
        caller = await start_service(*RETRY, plain_http=registry.host)
        assert await answer(caller, image) == "ac"
        registry.fault = None
        await asyncio.sleep(400)  # the longest that a host rests, and longer than the answer is fresh

        async def refusals() -> str:
            return str((await caller.filter(with_nodes(pod(image))))["FailedAndUnresolvableNodes"])

        await eventually(refusals, lambda found: "linux/amd64, linux/s390x" in found)


def listing(name: str, *images: str) -> Document:
    """A node that has the images."""
    made = node(name)
    made["status"]["images"] = [{"names": [image], "sizeBytes": 1} for image in images]
    return made


def held(image: str) -> Document:
    """A pod that our gate holds."""
    made = pod(image, labels={GATED_LABEL: "true"})
    made["spec"]["schedulingGates"] = [{"name": GATE}]
    return made | {"status": {"phase": "Pending"}}


def pulling(image: str, policy: str = "IfNotPresent") -> Document:
    made = pod(image)
    made["spec"]["containers"][0]["imagePullPolicy"] = policy
    return made


async def test_nodes_that_have_an_image_do_not_wait_for_a_registry_that_swallows_packets(cluster: Cluster) -> None:
    """They are left to the pod within a second: by filter, the webhook and the gate; a kubelet asks nobody there."""
    async with HoldingRegistry() as silent:
        image, reviewed, gated = (f"{silent.host}/{name}:1" for name in ("app", "reviewed", "gated"))
        cluster.api.put(NODES.path, listing("has", image, reviewed, gated))
        cluster.api.put(NODES.path, node("lacks"))
        settings = (*HOLDING, *RETRY, "admission.wait_seconds=1.5")
        async with cluster.service(*settings, listen="127.0.0.1:0", registries=[silent.host]) as caller:
            await caller.until_ready()
            names = ["has", "lacks"]
            began_at = asyncio.get_running_loop().time()
            await eventually(
                lambda: caller.filter(with_names(pulling(image), names)),
                lambda found: not found["Error"] and kept(found) == ["has"],
            )
            assert asyncio.get_running_loop().time() - began_at <= 1
            assert image in (await caller.filter(with_names(pulling(image, "Always"), names)))["Error"]

            began_at = asyncio.get_running_loop().time()
            assert GATE not in str((await caller.review(pulling(reviewed))).get("patch"))
            assert GATE in str((await caller.review(pulling(reviewed, "Always"))).get("patch"))
            assert asyncio.get_running_loop().time() - began_at <= 1 + 1.5

            began_at = asyncio.get_running_loop().time()
            cluster.api.put(PODS, held(gated))
            await eventually(lambda: not cluster.api.find(PODS, "p")["spec"].get("schedulingGates"))
            assert asyncio.get_running_loop().time() - began_at <= 1
