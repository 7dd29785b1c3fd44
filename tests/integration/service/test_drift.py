"""Tags that move in a registry while pods of a cluster use them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.drift.drift_watch import DRIFT, UNFINISHED
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry
from tests.integration.cluster.api_server import (
    ApiServer,
    namespace,
    node,
    owned,
    pod,
    told,
)
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, with_names, write_pull_secret
from tests.integration.service.caller import pod as created_pod
from tests.integration.service.conftest import Cluster

pytestmark = pytest.mark.usefixtures("simulated_time")
TAG_SECONDS = 5.0

REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture(autouse=True)
def _nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.service.resolving.TAG_SECONDS", TAG_SECONDS)
    for name in ("amd", "arm"):
        cluster.api.put(NODES.path, node(name, f"{name}64"))
    cluster.api.remove(NODES.path, "a")
    cluster.api.put(NAMESPACES.path, namespace("default"))


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
    cluster: Cluster, image: str, *settings: str, **spec: Any
) -> AsyncIterator[tuple[Caller, Callable[[], Awaitable[None]]]]:
    """The service, which knows the image, and a function that has its tag asked for again."""
    registry = image.partition("/")[0]
    async with cluster.service("drift.events=true", *settings, registries=[registry]) as caller:
        await caller.until_ready()
        asking = pod("asking", image=image)
        asking["spec"] |= spec

        async def ask() -> None:
            await asyncio.sleep(1.1 * TAG_SECONDS)
            await caller.review(asking, namespace="default")

        await ask()
        yield caller, ask


async def test_a_platform_that_running_pods_need_is_missed(cluster: Cluster) -> None:
    """One line of the log, one count, and one event on the Deployment, with the digest to go back to."""
    api, registry = cluster.api, cluster.registry
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
    counted = Counted()
    async with using(cluster, image, "placement.runtime_classes={wasm: []}") as (_, ask):
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


async def test_a_platform_that_unblocks_a_workload_is_told(cluster: Cluster) -> None:
    """Of pods whose other images have it; a pod that another image keeps away is not concerned."""
    api, registry = cluster.api, cluster.registry
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
    async with using(cluster, image) as (_, ask):
        registry.add_index("web", "latest", [AMD64, ARM64])
        await ask()
        await eventually(lambda: len(told(api)) == 2)
    assert {event["involvedObject"]["name"] for event in told(api)} == {"free", "waits"}
    assert {event["reason"] for event in told(api)} == {"ImageGainedPlatform"}
    assert counted() == {"gained": 1}


@pytest.mark.parametrize(
    ("before", "may_list", "change"),
    [([AMD64, "linux/s390x"], True, "unused"), ([AMD64, ARM64], False, "unchecked")],
    ids=["a platform that no pod runs on and no node has", "no right to list pods"],
)
async def test_a_change_of_which_nobody_is_told_is_counted(
    cluster: Cluster, before: list[str], change: str, *, may_list: bool
) -> None:
    """One that could not be checked is in the log too, and the service goes on."""
    api, registry = cluster.api, cluster.registry
    registry.add_index("web", "latest", before)
    image = f"{registry.host}/web:latest"
    api.put(PODS, pod("web", image, "amd", "Running"))
    counted = Counted()
    async with using(cluster, image) as (caller, ask):
        api.denied = set() if may_list else {PODS}
        registry.add_index("web", "latest", [AMD64])
        with structlog.testing.capture_logs() as lines:
            await ask()
            await eventually(counted)
        assert lists(api) == 1
        assert await caller.until_ready()
    assert counted() == {change: 1}
    unchecked = [line["first"] for line in lines if line["event"] == "image.drift_unchecked"]
    assert unchecked == ([] if may_list else [image])
    assert told(api) == []


async def test_nobody_is_told_of_an_image_that_their_own_credentials_do_not_open(cluster: Cluster) -> None:
    """Two pods name the private image; one may pull it."""
    api = cluster.api
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_index("web", "latest", [AMD64, ARM64])
        image = f"{registry.host}/web:latest"
        write_pull_secret(api, registry.host)
        secrets = [{"name": "pull"}]
        mine = owned(pod("mine-0", image, "arm", "Running"), "StatefulSet", "mine")
        mine["spec"]["imagePullSecrets"] = secrets
        api.put(PODS, mine)
        api.put(PODS, owned(pod("spying-0", image, "arm", "Running"), "StatefulSet", "spying"))
        async with using(cluster, image, imagePullSecrets=secrets) as (_, ask):
            registry.add_index("web", "latest", [AMD64])
            await ask()
            await eventually(lambda: told(api))
            registry.add_index("web", "latest", [AMD64, ARM64])
            # Those of the move before have been sent when one of the next one is.
            await ask()
            await eventually(lambda: "ImageGainedPlatform" in {event["reason"] for event in told(api)})
    assert {event["involvedObject"]["name"] for event in told(api)} == {"mine"}


AMD64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0\x3e\0" + bytes(44)


async def nodes_for(caller: Caller, image: str, in_namespace: str) -> list[str]:
    """The nodes that a pod of the namespace may go to, all if it is not known yet."""
    result = await caller.filter(with_names(created_pod(image, namespace=in_namespace), ["amd", "arm"]))
    return sorted(kept(result)) if not result["Error"] else ["amd", "arm"]
