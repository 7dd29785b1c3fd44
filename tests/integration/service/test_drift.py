"""Tags that move in a registry while pods of a cluster use them, on the whole service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.drift.drift_watch import DRIFT, UNFINISHED
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry
from tests.integration.cluster.api_server import (
    ApiServer,
    namespace,
    node,
    owned,
    pod,
    serve_api,
    told,
)
from tests.integration.service.caller import AMD64, ARM64, Caller
from tests.integration.service.watching import service_in, until_ready, write_pull_secret

pytestmark = pytest.mark.usefixtures("simulated_time")
TAG_SECONDS = 5.0

REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr("extender.service.resolving.TAG_SECONDS", TAG_SECONDS)
    async with serve_api() as server:
        server.put(NODES.path, node("amd", "amd64"))
        server.put(NODES.path, node("arm", "arm64"))
        server.put(NAMESPACES.path, namespace("default"))
        yield server


def lists(api: ApiServer) -> int:
    return sum(request.query.get("fieldSelector") == UNFINISHED for request in api.received("list"))


class Counted:
    """How much the counts of changes have grown."""

    def __init__(self) -> None:
        self._before = self._values()

    @staticmethod
    def _values() -> Mapping[str, float]:
        return {change: count.value for change, count in DRIFT.items()}

    def __call__(self) -> Mapping[str, float]:
        return {change: value - self._before[change] for change, value in self._values().items()
                if value != self._before[change]}  # fmt: skip


@asynccontextmanager
async def using(
    api: ApiServer, folder: Path, image: str, *settings: str, registries: tuple[str, ...] = (), **spec: Any
) -> AsyncIterator[tuple[Caller, Callable[[], Awaitable[None]]]]:
    """The service, which knows the image, and a function that has its tag asked for again."""
    more = ("drift.events=true", *settings)
    async with service_in(api, folder, "", *more, registries=registries) as caller:
        await until_ready(caller)
        asking = pod("asking", image=image)
        asking["spec"] |= spec

        async def ask() -> None:
            await asyncio.sleep(1.1 * TAG_SECONDS)
            await caller.review(asking, namespace="default")

        await ask()
        yield caller, ask


async def test_a_platform_that_running_pods_need_is_missed(api: ApiServer, tmp_path: Path) -> None:
    """One line of the log, one count, and one event on the Deployment, with the digest to go back to."""
    async with EmbeddedRegistry() as registry:
        digest = registry.add_index("web", "latest", [AMD64, ARM64])
        image = f"{registry.host}/web:latest"
        api.put(REPLICASETS, owned({"metadata": {"name": "web-5d4f8c7b9f"}}, "Deployment", "web"))
        for name, on in (("web-1", "arm"), ("web-2", "arm"), ("web-3", "amd")):
            api.put(PODS, owned(pod(name, image, on, "Running"), "ReplicaSet", "web-5d4f8c7b9f"))
        api.put(PODS, owned(pod("done", image, "arm", "Succeeded"), "Job", "done", "batch/v1"))
        api.put(PODS, owned(pod("other", f"{registry.host}/other:latest", "arm", "Running"), "StatefulSet", "other"))
        ignored = owned(pod("wasm", image, "arm", "Running"), "StatefulSet", "wasm")
        ignored["spec"]["runtimeClassName"] = "wasm"
        api.put(PODS, ignored)
        opted_out = owned(pod("out", image, "arm", "Running"), "StatefulSet", "out")
        opted_out["metadata"]["annotations"] = {"multiarch-extender.io/mode": "ignore"}
        api.put(PODS, opted_out)
        ignoring = "placement.runtime_classes={wasm: []}"
        counted = Counted()
        async with using(api, tmp_path, image, ignoring, registries=(registry.host,)) as (_, ask):
            after = registry.add_index("web", "latest", [AMD64])
            with structlog.testing.capture_logs() as lines:
                await ask()
                await eventually(lambda: told(api))
    [event] = told(api)
    assert event["involvedObject"] == {
        "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "web", "uid": "uid-web",
    }  # fmt: skip
    assert (event["reason"], event["type"]) == ("ImageLostPlatform", "Warning")
    assert f"image {image} has lost linux/arm64" in event["message"]
    assert f"{registry.host}/web@{digest}" in event["message"]
    [line] = [each for each in lines if each["event"] == "image.drifted"]
    assert (line["log_level"], line["change"], line["platforms"], line["pods"]) == ("warning", "lost", "linux/arm64", 2)
    assert (line["digest_before"], line["digest"]) == (digest, after)
    assert line["workloads"] == ["default/ReplicaSet/web-5d4f8c7b9f"]
    assert counted() == {"lost": 1}


async def test_a_platform_that_unblocks_a_workload_is_told(api: ApiServer, tmp_path: Path) -> None:
    """Of pods whose other images have it; a pod that another image keeps away is not concerned."""
    async with EmbeddedRegistry() as registry:
        registry.add_index("web", "latest", [AMD64])
        registry.add_index("both", "1", [AMD64, ARM64])
        registry.add_index("amd", "1", [AMD64])
        image = f"{registry.host}/web:latest"
        for name, other in (("free", "both"), ("kept", "amd")):
            found = owned(pod(f"{name}-0", image, "amd", "Running"), "StatefulSet", name)
            found["spec"]["containers"].append({"name": "other", "image": f"{registry.host}/{other}:1"})
            api.put(PODS, found)
        api.put(PODS, owned(pod("waits-0", image), "StatefulSet", "waits"))
        counted = Counted()
        async with using(api, tmp_path, image, registries=(registry.host,)) as (_, ask):
            registry.add_index("web", "latest", [AMD64, ARM64])
            await ask()
            await eventually(lambda: len(told(api)) == 2)
    assert {event["involvedObject"]["name"] for event in told(api)} == {"free", "waits"}
    assert {event["reason"] for event in told(api)} == {"ImageGainedPlatform"}
    assert counted() == {"gained": 1}


async def test_a_change_that_concerns_nobody_is_only_counted(api: ApiServer, tmp_path: Path) -> None:
    """A platform that no pod runs on and no node has."""
    async with EmbeddedRegistry() as registry:
        registry.add_index("web", "latest", [AMD64, "linux/s390x"])
        image = f"{registry.host}/web:latest"
        api.put(PODS, pod("web", image, "amd", "Running"))
        counted = Counted()
        async with using(api, tmp_path, image, registries=(registry.host,)) as (_, ask):
            registry.add_index("web", "latest", [AMD64])
            await ask()
            await eventually(counted)
            assert lists(api) == 1
    assert counted() == {"unused": 1}
    assert told(api) == []


async def test_without_the_right_to_list_pods_a_change_is_unchecked(api: ApiServer, tmp_path: Path) -> None:
    """It is counted and logged, and the service goes on."""
    async with EmbeddedRegistry() as registry:
        registry.add_index("web", "latest", [AMD64, ARM64])
        image = f"{registry.host}/web:latest"
        counted = Counted()
        async with using(api, tmp_path, image, registries=(registry.host,)) as (caller, ask):
            api.denied.add(PODS)
            registry.add_index("web", "latest", [AMD64])
            with structlog.testing.capture_logs() as lines:
                await ask()
                await eventually(counted)
            assert await until_ready(caller)
    assert counted() == {"unchecked": 1}
    assert [line["first"] for line in lines if line["event"] == "image.drift_unchecked"] == [image]


async def test_nobody_is_told_of_an_image_that_their_own_credentials_do_not_open(
    api: ApiServer, tmp_path: Path
) -> None:
    """Two pods name the private image; one may pull it."""
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_index("web", "latest", [AMD64, ARM64])
        image = f"{registry.host}/web:latest"
        write_pull_secret(api, registry.host)
        mine = owned(pod("mine-0", image, "arm", "Running"), "StatefulSet", "mine")
        mine["spec"]["imagePullSecrets"] = [{"name": "pull"}]
        api.put(PODS, mine)
        api.put(PODS, owned(pod("spying-0", image, "arm", "Running"), "StatefulSet", "spying"))
        secrets = [{"name": "pull"}]
        hosts = (registry.host,)
        async with using(api, tmp_path, image, registries=hosts, imagePullSecrets=secrets) as (_, ask):
            registry.add_index("web", "latest", [AMD64])
            await ask()
            await eventually(lambda: told(api))
            registry.add_index("web", "latest", [AMD64, ARM64])
            # Those of the move before have been sent when one of the next one is.
            await ask()
            await eventually(lambda: "ImageGainedPlatform" in {event["reason"] for event in told(api)})
    assert {event["involvedObject"]["name"] for event in told(api)} == {"mine"}
