"""Replicas of a workload on both architectures, by what the webhook writes and kube-scheduler does."""

import pytest

from testbed.objects import pod
from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

REPLICAS = 20
LABELS = {"app": "web", "pod-template-hash": "5d4f8c7b9"}


@pytest.mark.parametrize("spread", ["true", "false"])
async def test_replicas_stand_on_both_architectures(world: World, spread: str) -> None:
    """A good part on arm64, though amd64 has sixteen times its room, and without the annotation none; no pod waits."""
    await world.create_nodes("amd64", 4, cpu="64")
    await world.create_nodes("arm64", 4, cpu="4")
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace(annotations={"multiarch-extender.io/spread": spread})
    with world.default_scheduler(None):
        for count, prefix in ((REPLICAS, "first"), (2 * REPLICAS, "next")):
            await world.api.create_all(_replica(world, where, f"{prefix}-{number}") for number in range(REPLICAS))
            await world.wait_all_bound(where, count)
            placed = await world.count_placed(where)
            world.figure(f"spread {spread}: {count} replicas {dict(placed)}")
            if spread == "true":
                assert placed["arm64"] >= REPLICAS * 3 // 10
                assert placed["amd64"] >= REPLICAS * 3 // 10


def _replica(world: World, where: str, name: str) -> dict[str, object]:
    """A pod as a ReplicaSet makes it, of one CPU."""
    made = pod(name, world.images.multi, namespace=where, cpu="1", labels=LABELS)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made
