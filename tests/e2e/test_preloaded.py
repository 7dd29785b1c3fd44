"""Images that nodes have and no registry does: pods of them go there, on a real scheduler."""

from pathlib import Path

import pytest

from testbed.eventually import eventually
from testbed.nodes.images import PROGRAM, build_image, image_archive
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.running import Outcome, RealImages, observe, open_nodes
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

IMAGE = "registry.invalid/airgapped/app:1"
EACH = 5  # under either policy, as fast as a node can start them
SECOND = "multiarch-scheduler"


async def create_preloaded(world: World, where: str) -> None:
    for policy in ("IfNotPresent", "Never"):
        for number in range(EACH):
            manifest = pod(f"{policy.lower()}-{number}", IMAGE, namespace=where, spec={"schedulerName": SECOND})
            manifest["spec"]["containers"][0]["imagePullPolicy"] = policy
            await world.api.create(manifest)


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
    async with open_nodes(world.cluster, world.api, node_programs, real_images) as nodes:
        await nodes["amd64"].import_images(archive)
        await eventually(lambda: world.api.get("Node", "amd64", ""), lists)
        with world.second_scheduler(service):
            await create_preloaded(world, where)
            seen = await observe(world.api, where, 2 * EACH, 120)
            placed = await world.placed(where)
        await world.api.delete_all("Pod", where)
    assert {name: each for name, each in seen.items() if each.outcome is not Outcome.RUNS} == {}
    assert set(placed.values()) == {"amd64"}


def lists(node: KubernetesObject) -> bool:
    return any(IMAGE in (each.get("names") or ()) for each in node["status"].get("images") or ())
