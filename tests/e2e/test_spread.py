"""Replicas of a workload on both architectures, by what the webhook writes and kube-scheduler does."""

import pytest

from testbed.chart import objects_of, render
from testbed.objects import KubernetesObject, fake_node, pod
from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

REPLICAS = 20
LABELS = {"app": "web", "pod-template-hash": "5d4f8c7b9"}


async def test_replicas_stand_on_both_architectures(world: World) -> None:
    """A good part on arm64, though amd64 has sixteen times its room; no pod waits."""
    await world.create_nodes("amd64", 4, cpu="64")
    await world.create_nodes("arm64", 4, cpu="4")
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace(annotations={"multiarch-extender.io/spread": "true"})
    with world.default_scheduler(None):
        for count, prefix in ((REPLICAS, "first"), (2 * REPLICAS, "next")):
            await world.api.create_all(_replica(world, where, f"{prefix}-{number}") for number in range(REPLICAS))
            await world.wait_all_bound(where, count)
            placed = await world.count_placed(where)
            world.figure(f"spread: {count} replicas {dict(placed)}")
            assert placed["arm64"] >= REPLICAS * 3 // 10
            assert placed["amd64"] >= REPLICAS * 3 // 10


@pytest.mark.usefixtures("helm_program")
@pytest.mark.parametrize("zones", [0, 2])
async def test_replicas_of_the_service_itself_stand_on_different_hosts(world: World, zones: int) -> None:
    """As the chart has them, on nodes with and without a label that tells their zone."""
    for number in range(4):
        labels = {"topology.kubernetes.io/zone": f"zone-{number % zones}"} if zones else {}
        await world.api.create(fake_node(f"node-{number}", "amd64", cpu="64", labels=labels))
    (deployment,) = (each for each in objects_of(render({})) if each["kind"] == "Deployment")
    where = await world.namespace()
    with world.default_scheduler(None):
        for number in range(4):
            await world.api.create(_own_replica(deployment["spec"]["template"], where, f"replica-{number}"))
            await world.wait_all_bound(where, number + 1)
    placed = await world.placed(where)
    assert len(set(placed.values())) == 4, placed


def _own_replica(template: KubernetesObject, where: str, name: str) -> KubernetesObject:
    made = pod(name, "a:1", namespace=where, cpu="100m", labels=template["metadata"]["labels"])
    for field in ("affinity", "tolerations", "topologySpreadConstraints", "nodeSelector"):
        made["spec"][field] = template["spec"][field]
    return made


def _replica(world: World, where: str, name: str) -> dict[str, object]:
    made = pod(name, world.images.multi, namespace=where, cpu="1", labels=LABELS)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made
