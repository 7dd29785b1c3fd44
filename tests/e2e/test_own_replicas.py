"""Replicas of the service itself on different hosts, by what the chart writes and kube-scheduler does."""

import pytest

from testbed.chart import objects_of, render
from testbed.objects import KubernetesObject, fake_node, pod
from tests.e2e.world import World

pytestmark = pytest.mark.e2e


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
