"""Images that claim platforms falsely, on the whole service: what it learns from a crash, and by looking inside."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.demo.registry import EmbeddedRegistry
from extender.drift import crash_watch
from extender.resolver.crashes import CRASHES
from testbed.packed_layers import Put, gzipped
from testbed.zoo_images import make_image, make_index
from tests.integration.cluster.api_server import ApiServer, Document, Watcher, event, namespace, node, pod, serve_api
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, with_names
from tests.integration.service.caller import pod as created
from tests.integration.service.test_drift import owned, soon, told  # noqa: F401 - `soon` is a fixture
from tests.integration.service.test_watches import service_in, until, until_ready

AMD64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0\x3e\0" + bytes(44)
LISTENING = "127.0.0.1:0"
WORDS = "exec /app: exec format error\n"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A cluster with a node of each platform, and two namespaces."""
    async with serve_api() as server:
        server.put(NODES.path, node("amd", "amd64"))
        server.put(NODES.path, node("arm", "arm64"))
        for name in ("default", "other"):
            server.put(NAMESPACES.path, namespace(name))
        yield server


def crashed(name: str, image: str, digest: str, *, on: str = "arm", words: str = WORDS) -> Document:
    """A pod whose container ended with these words on a node."""
    found = pod(name, image, on, "Running")
    ended = {"exitCode": 255, "reason": "Error", "message": words}
    repository = image.partition("@")[0].rpartition(":")[0]
    status = {"name": "main", "image": image, "imageID": f"{repository}@{digest}", "lastState": {"terminated": ended},
              "state": {"waiting": {"reason": "CrashLoopBackOff"}}}  # fmt: skip
    found["status"]["containerStatuses"] = [status]
    return owned(found, "ReplicaSet", "web")


def in_class(name: str, document: Document) -> Document:
    """The pod with a RuntimeClass."""
    document["spec"]["runtimeClassName"] = name
    return document


async def nodes_for(caller: Caller, image: str, in_namespace: str) -> list[str]:
    """The nodes that a pod of the namespace may go to, all if it is not known yet."""
    result = await caller.filter(with_names(created(image, namespace=in_namespace), ["amd", "arm"]))
    return sorted(kept(result)) if not result["Error"] else ["amd", "arm"]


async def test_a_crash_counts_in_its_own_namespace_alone(api: ApiServer, tmp_path: Path) -> None:
    """Whoever may create pods can make one crash, or have a status say so: no other namespace is told."""
    async with EmbeddedRegistry() as registry:
        digest = registry.add_index("web", "1", [AMD64, ARM64])
        image = f"{registry.host}/web:1"
        api.put(PODS, crashed("web-1", image, digest))
        before = _crashes()
        async with service_in(api, tmp_path, LISTENING, registries=(registry.host,)) as caller:
            await until_ready(caller)
            await until(lambda: _crashes() > before)
            assert await nodes_for(caller, image, "default") == ["amd"]
            assert await nodes_for(caller, image, "other") == ["amd", "arm"]
            result = await caller.filter(with_names(created(image, namespace="default"), ["arm"]))
            (said,) = result["FailedAndUnresolvableNodes"].values()
            assert said.endswith("; it claims linux/arm64, but its program was of an unknown format there")


async def test_each_replica_learns_a_crash_when_the_kubelet_tells(api: ApiServer, tmp_path: Path) -> None:
    """No listing of pods is waited for, and one that starts later learns what crashes still."""
    folders = [tmp_path / name for name in ("one", "two", "later")]
    for folder in folders:
        folder.mkdir()
    async with EmbeddedRegistry() as registry:
        digest = registry.add_index("web", "1", [AMD64, ARM64])
        image = f"{registry.host}/web:1"
        api.put(PODS, pod("web-1", image, "arm", "Running"))
        async with contextlib.AsyncExitStack() as stack:
            replicas = []
            for folder in folders[:2]:
                opened = service_in(api, folder, LISTENING, registries=(registry.host,))
                replicas.append(await stack.enter_async_context(opened))
                await until_ready(replicas[-1])
            await until(lambda: len(_watches_of_bound_pods(api)) == 2)
            for each in replicas:
                await until_known(each, image)
                assert await nodes_for(each, image, "default") == ["amd", "arm"]
            before = _crashes()
            api.put(PODS, crashed("web-1", image, digest))
            await until(lambda: _crashes() == before + 2)
            for each in replicas:
                assert await nodes_for(each, image, "default") == ["amd"]
            opened = service_in(api, folders[2], LISTENING, registries=(registry.host,))
            replicas.append(await stack.enter_async_context(opened))
            await until_ready(replicas[-1])
            await until(lambda: _crashes() == before + 3)
            assert await nodes_for(replicas[-1], image, "default") == ["amd"]
        assert not [each for each in api.received("list") if each.path == PODS and "labelSelector" not in each.query]


async def until_known(caller: Caller, image: str) -> None:
    """Asks until the service knows the image."""
    async with asyncio.timeout(10):
        while (await caller.filter(with_names(created(image), ["amd", "arm"])))["Error"]:
            await asyncio.sleep(0.02)


async def test_a_watch_of_crashes_outlives_its_end_and_an_expired_version(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on from the last bookmark, and begins with all pods if that has expired."""
    monkeypatch.setattr(crash_watch, "_FIRST_DELAY_SECONDS", 0.02)
    async with EmbeddedRegistry() as registry:
        digest = registry.add_index("web", "1", [AMD64, ARM64])
        image = f"{registry.host}/web:1"
        async with service_in(api, tmp_path, LISTENING, registries=(registry.host,)) as caller:
            await until_ready(caller)
            await until(lambda: _watches_of_bound_pods(api))
            api.bookmark(PODS)
            api.put(PODS, pod("busy-1", image, "amd", "Running"))
            api.send(PODS, None)
            await until(lambda: len(_versions(api)) == 2 and _watches_of_bound_pods(api))
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            api.send(PODS, event("ERROR", status))
            before = _crashes()
            api.put(PODS, crashed("web-1", image, digest))
            await until(lambda: _crashes() > before)
            assert await nodes_for(caller, image, "default") == ["amd"]
        first, second, third = _versions(api)[:3]
        assert (first, third) == ("0", "0")
        assert second == "104"  # two nodes and two namespaces after the first version, 100


def _versions(api: ApiServer) -> list[str]:
    found = [each.query for each in api.received("watch") if each.path == PODS]
    return [query["resourceVersion"] for query in found if query["fieldSelector"] == "spec.nodeName!="]


def _watches_of_bound_pods(api: ApiServer) -> list[Watcher]:
    return [each for each in api.watchers(PODS) if each.selector == "spec.nodeName!="]


def _crashes() -> float:
    return CRASHES["new"].value


@pytest.mark.parametrize(
    "pods",
    [
        lambda image, _: [crashed("web-1", image, "sha256:" + "7" * 64)],
        lambda image, digest: [in_class("rosetta", crashed("web-1", image, digest))],
        lambda image, digest: [crashed("web-1", image, digest, words="panic: no such file")],
        lambda image, digest: [pod("web-1", image, "arm", "Running")],
    ],
    ids=["of another digest", "of a RuntimeClass for that", "for another reason", "not at all"],
)
async def test_what_is_no_crash_of_this_image_changes_nothing(api: ApiServer, tmp_path: Path, pods: object) -> None:
    """A runtime may report another image's digest, and programs end for many reasons, some of which are wanted."""
    async with EmbeddedRegistry() as registry:
        digest = registry.add_index("web", "1", [AMD64, ARM64])
        image = f"{registry.host}/web:1"
        for each in pods(image, digest):  # type: ignore[operator]
            api.put(PODS, each)
        before = _crashes()
        settings = ("placement.runtime_classes={rosetta: [linux/amd64]}",)
        async with service_in(api, tmp_path, LISTENING, *settings, registries=(registry.host,)) as caller:
            await until_ready(caller)
            await until_known(caller, image)
            api.put(PODS, crashed("last", f"{registry.host}/last:1", registry.add_index("last", "1", [ARM64])))
            await until(lambda: _crashes() > before)
            assert await nodes_for(caller, image, "default") == ["amd", "arm"]
        assert _crashes() == before + 1


@pytest.mark.usefixtures("soon")
async def test_a_lie_is_found_in_the_background_and_told(api: ApiServer, tmp_path: Path) -> None:
    """Pods are kept off from then on, in every namespace, and the workload gets an event."""
    layers = [gzipped([Put("app", AMD64_ELF)])]
    lying = make_index([(each, make_image(each, layers, Entrypoint=["/app"])) for each in (AMD64, ARM64)])
    async with EmbeddedRegistry() as registry:
        registry.add("web", "1", lying)
        image = f"{registry.host}/web:1"
        api.put(PODS, owned(pod("web-1", image, "arm", "Running"), "StatefulSet", "web"))
        settings = ("registry.verify=background", "drift.events=true")
        async with service_in(api, tmp_path, LISTENING, *settings, registries=(registry.host,)) as caller:
            await until_ready(caller)
            await caller.review(created(image), namespace="default")
            await until(lambda: told(api))
            assert await nodes_for(caller, image, "other") == ["amd"]
            assert await caller.metric('multiarch_images{state="refuted"}') == 1
    (event,) = told(api)
    assert (event["reason"], event["type"]) == ("ImageLiesAboutPlatform", "Warning")
    assert f"image {image} claims linux/arm64, but its /app is for x86-64" in event["message"]
