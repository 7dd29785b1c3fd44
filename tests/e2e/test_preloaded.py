"""Images that nodes have and no registry does: pods of them go there at once, on a real scheduler."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from testbed.eventually import USUAL_SECONDS, eventually
from testbed.nodes.images import PROGRAM, build_image, image_archive
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, fake_node, pod
from testbed.shipped_files import Mode
from tests.e2e.running import Outcome, RealImages, observe, open_nodes
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

IMAGE = "registry.invalid/airgapped/app:1"
EACH = 10
REAL_EACH = 5  # as fast as a node can start
SECOND = "multiarch-scheduler"


def having(name: str, *images: str) -> KubernetesObject:
    """A node whose kubelet says that it has these images."""
    node = fake_node(name, "arm64", cpu="64")
    node["status"]["images"] = [{"names": [image], "sizeBytes": 500_000_000} for image in images]
    return node


class Bound:
    """How long pods have waited for their nodes, and which these are, by the pods' names."""

    def __init__(self, pods: int) -> None:
        self.waited: dict[str, float] = {}
        self.nodes: dict[str, str] = {}
        self._pods, self._created = pods, dict[str, float]()

    async def watch(self, world: World, where: str) -> None:
        """Returns once so many pods of those that `create` made have a node."""
        async with aclosing(world.api.watch("Pod", where)) as changes:
            async for _, found in changes:
                name = found["metadata"]["name"]
                if found["spec"].get("nodeName") and name in self._created and name not in self.nodes:
                    self.nodes[name] = found["spec"]["nodeName"]
                    self.waited[name] = time.monotonic() - self._created[name]
                if len(self.nodes) == self._pods:
                    return

    async def create(self, world: World, where: str, each: int) -> None:
        """Creates so many pods under either policy."""
        for policy in ("IfNotPresent", "Never"):
            for number in range(each):
                manifest = pod(f"{policy.lower()}-{number}", IMAGE, namespace=where, spec={"schedulerName": SECOND})
                manifest["spec"]["containers"][0]["imagePullPolicy"] = policy
                self._created[manifest["metadata"]["name"]] = time.monotonic()
                await world.api.create(manifest)


async def test_pods_of_preloaded_images_go_to_nodes_that_have_them(world: World) -> None:
    """Under IfNotPresent and Never, within a second each; a pod of an image that nobody has waits."""
    await world.api.create_all([having("full-0", IMAGE), having("full-1", IMAGE), having("empty-0"), having("empty-1")])
    service = await world.start_service(mode=Mode.SECOND)
    where = await world.namespace(second=True)
    await service.ask("filter", {"Pod": pod("warm", IMAGE, namespace=where), "NodeNames": ["full-0"]})
    bound = Bound(2 * EACH)
    with world.second_scheduler(service):
        await world.api.create(pod("first", IMAGE, namespace=where, spec={"schedulerName": SECOND}))
        await world.wait_all_bound(where, 1)  # kube-scheduler has begun
        watching = asyncio.create_task(bound.watch(world, where))
        lost = pod("lost", "registry.invalid/airgapped/lost:1", namespace=where, spec={"schedulerName": SECOND})
        await world.api.create(lost)
        await bound.create(world, where, EACH)
        async with asyncio.timeout(USUAL_SECONDS):
            await watching
        assert set(bound.nodes.values()) == {"full-0", "full-1"}
        assert "lost" not in await world.placed(where)
    slowest = max(bound.waited.values())
    world.figure(f"preloaded images: {2 * EACH} pods bound, the slowest {slowest:.2f} s after its creation")
    assert slowest < 1
    assert await service.metric("multiarch_nodes_total", endpoint="filter", verdict="listed") >= 2 * EACH


async def test_gate_holds_no_pod_of_an_image_that_nodes_have(world: World) -> None:
    """The webhook lets it through unchanged; a pod of an image that nobody has is held, as its push may come."""
    await world.api.create_all([having("full-0", IMAGE), having("empty-0")])
    service = await world.start_service("admission.unknown=gate", "admission.wait_seconds=1", mode=Mode.WEBHOOK)
    await eventually(service.readiness, lambda found: "leading" in found)
    await world.register_webhook(service)
    where = await world.namespace()
    preloaded = await world.review(pod("preloaded", IMAGE, namespace=where))
    lost = await world.review(pod("lost", "registry.invalid/airgapped/lost:1", namespace=where))
    assert "schedulingGates" not in preloaded["spec"]
    assert lost["spec"]["schedulingGates"]


async def test_pods_of_images_in_a_nodes_own_store_run_there(
    world: World, node_programs: NodePrograms, real_images: RealImages, tmp_path: Path
) -> None:
    """Real nodes: the image is in the store of one node's containerd, and in no registry."""
    archive = tmp_path / "images.tar"
    # Not the registry's: of an image that kubelet has pulled under one name it asks for credentials under others.
    own = build_image("linux/amd64", {PROGRAM: real_images.hello["amd64"], "/preloaded": b""})
    archive.write_bytes(image_archive({IMAGE: own}))
    service = await world.start_service(*real_images.settings, mode=Mode.SECOND)
    where = await world.namespace(second=True)
    bound = Bound(2 * REAL_EACH)
    async with open_nodes(world.cluster, world.api, node_programs, real_images) as nodes:
        await nodes["amd64"].import_images(archive)
        await eventually(lambda: world.api.get("Node", "amd64", ""), lists)
        with world.second_scheduler(service):
            await world.api.create(pod("first", real_images.amd, namespace=where, spec={"schedulerName": SECOND}))
            await world.wait_all_bound(where, 1)  # kube-scheduler has begun
            watching = asyncio.create_task(bound.watch(world, where))
            await bound.create(world, where, REAL_EACH)
            async with asyncio.timeout(USUAL_SECONDS):
                await watching
            seen = await observe(world.api, where, 1 + 2 * REAL_EACH, 120)
        await world.api.delete_all("Pod", where)
    slowest = max(bound.waited.values())
    world.figure(f"preloaded on a real node: {len(bound.nodes)} pods run, the slowest bound {slowest:.2f} s after")
    assert {name: each for name, each in seen.items() if each.outcome is not Outcome.RUNS} == {}
    assert set(bound.nodes.values()) == {"amd64"}
    assert slowest < 1


def lists(node: KubernetesObject) -> bool:
    """Whether kubelet says that the node has the image."""
    return any(IMAGE in (each.get("names") or ()) for each in node["status"].get("images") or ())
