"""What the service asks of the cluster: pending pods only for a scheduler or for their secrets."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from extender.cluster.namespaces import NAMESPACES
from extender.cluster.nodes import NODES
from extender.cluster.pods import PENDING_PODS
from extender.config.reading import load_config
from extender.demo.registry import EmbeddedRegistry
from extender.server.service import open_service, open_surroundings
from tests.integration.cluster.api_server import ApiServer, namespace, node, pod, serve_api, write_kubeconfig
from tests.integration.registry.faulty import GuardedRegistry
from tests.integration.service.caller import AMD64, ARM64, Caller

ALWAYS = {NODES.path, NAMESPACES.path}
MODES = pytest.mark.parametrize(
    ("listen", "setting", "more"),
    [
        ("127.0.0.1:0", "admission.network_policy=true", {PENDING_PODS.path}),
        ("", "admission.network_policy=true", set()),
        ("", "admission.network_policy=false", {PENDING_PODS.path}),
        ("", "registry.pull_secrets=false", set()),
    ],
    ids=["scheduler", "webhook only", "webhook that anyone may reach", "webhook without secrets"],
)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A cluster with a node and a namespace."""
    async with serve_api() as server:
        server.put(NODES.path, node("a"))
        server.put(NAMESPACES.path, namespace("shop"))
        yield server


@asynccontextmanager
async def service_in(
    api: ApiServer, folder: Path, listen: str, *more: str, registry: str = ""
) -> AsyncIterator[Caller]:
    """The whole service on that cluster, with `scheduler.listen` and more settings as given."""
    settings = [
        f"cluster.kubeconfig={write_kubeconfig(api, folder)}",
        f"scheduler.listen='{listen}'",
        "admission.listen=127.0.0.1:0",
        "admission.tls=null",
        "operations.listen=127.0.0.1:0",
        "shutdown.grace_seconds=0.5",
        "cache.url='memory:'",
    ]
    plain = [f"registry.plain_http=['{registry}']", f"registry.allow=['{registry}']"] if registry else []
    config = load_config(None, [*settings, *plain, *more])
    async with (
        aiohttp.ClientSession() as session,
        open_surroundings(config) as surroundings,
        open_service(config, surroundings) as service,
    ):
        yield Caller(session, service)


async def checks(caller: Caller, path: str) -> tuple[int, dict[str, str]]:
    """The status, and of each check its mark."""
    async with caller.session.get(f"{caller.service.operations_url}{path}?verbose") as response:
        *lines, _ = (await response.text()).splitlines()
        return response.status, {line[3:].split()[0]: line[:3] for line in lines}


async def until_ready(caller: Caller) -> dict[str, str]:
    """The marks of the ready checks, once all are well."""
    async with asyncio.timeout(10):
        while (found := await checks(caller, "/readyz"))[0] != 200:
            await asyncio.sleep(0.01)
    return found[1]


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@MODES
async def test_pending_pods_are_asked_for_only_where_they_tell_something(
    api: ApiServer, tmp_path: Path, listen: str, setting: str, more: set[str]
) -> None:
    """Elsewhere not one request for pods is made, from the start to the end."""
    async with service_in(api, tmp_path, listen, setting) as caller:
        await until_ready(caller)
        await until(lambda: all(map(api.watchers, ALWAYS | more)))
        api.put(PENDING_PODS.path, pod("web"))
    assert {request.path for request in api.requests} == ALWAYS | more


@MODES
async def test_ready_and_live_checks_are_those_of_the_watches_that_run(
    api: ApiServer, tmp_path: Path, listen: str, setting: str, more: set[str]
) -> None:
    """A service without the watch does not wait for it, and still waits for the others."""
    watched = {path.rpartition("/")[2] for path in ALWAYS | more}
    api.is_open.clear()
    async with service_in(api, tmp_path, listen, setting) as caller:
        assert await checks(caller, "/readyz") == (503, {"shutdown": "[+]"} | dict.fromkeys(watched, "[-]"))
        assert await checks(caller, "/livez") == (
            200,
            dict.fromkeys(["ping", *(f"watch-{name}" for name in watched)], "[+]"),
        )
        api.is_open.set()
        assert await until_ready(caller) == dict.fromkeys(["shutdown", *watched], "[+]")


async def test_a_pending_pods_image_is_looked_up_before_a_scheduler_asks(api: ApiServer, tmp_path: Path) -> None:
    """Whom the watch tells is what fetches: no verb is called here."""
    async with EmbeddedRegistry() as registry:
        registry.add_manifest("app", "1", AMD64)
        api.put(PENDING_PODS.path, pod("web", image=f"{registry.host}/app:1"))
        async with service_in(api, tmp_path, "127.0.0.1:0", registry=registry.host):
            await until(lambda: registry.requests["GET manifests"])


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["webhook only", "scheduler"])
@pytest.mark.parametrize("network_policy", ["true", "false"])
async def test_a_private_image_is_known_to_the_webhook(
    api: ApiServer, tmp_path: Path, listen: str, network_policy: str
) -> None:
    """The review itself reads the pod's secret where the setting says so, else the watch did for an earlier pod."""
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_index("app", "1", [AMD64, ARM64])
        login = {"auths": {registry.host: {"auth": base64.b64encode(b"ann:secret").decode()}}}
        api.put(
            "/api/v1/namespaces/default/secrets",
            {
                "metadata": {"name": "pull", "namespace": "default"},
                "type": "kubernetes.io/dockerconfigjson",
                "data": {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()},
            },
        )
        created = pod("web", image=f"{registry.host}/app:1")
        created["spec"]["imagePullSecrets"] = [{"name": "pull"}]
        async with service_in(
            api, tmp_path, listen, f"admission.network_policy={network_policy}", registry=registry.host
        ) as caller:
            await until_ready(caller)
            api.put(PENDING_PODS.path, created)
            if listen or network_policy == "false":
                await until(lambda: registry.requests["GET manifests"])
            answer = await caller.review(created, namespace="default")
        assert answer["patch"]
    assert any(request.kind == "get" for request in api.requests)
