"""Whom an urgent pod evicts in a full cluster: with our preempt verb one pod, where it can run.

kube-scheduler chooses victims on nodes that filter has never been asked about, as full nodes do not get that far.
"""

import pytest

from testbed.objects import pod
from testbed.shipped_files import Mode
from tests.e2e.world import SCHEDULER_NAMES, World

pytestmark = pytest.mark.e2e

NODES_OF_A_KIND = 10
PRIORITIES = {"cheap": 0, "fair": 50, "urgent": 1000}


async def fill(world: World, where: str) -> None:
    """Ten nodes of each architecture, each full with one pod: those on arm64 are the cheaper victims."""
    for architecture, image, priority in (("amd64", world.images.amd, "fair"), ("arm64", world.images.arm, "cheap")):
        for node in await world.create_nodes(architecture, NODES_OF_A_KIND, cpu="1"):
            spec = {"nodeName": node, "priorityClassName": priority}
            await world.api.create(pod(f"on-{node}", image, namespace=where, cpu="1", spec=spec))


async def evictions(world: World, mode: Mode, affinity: str, **entry: str | None) -> tuple[int, int]:
    """How many pods on amd64 and on arm64 an urgent amd64-only pod costs before it is placed; it stands on amd64."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    await fill(world, where)
    service = await world.start_service(f"admission.node_affinity={affinity}", mode=mode)
    if affinity == "required":
        await world.register_webhook(service)
    with world.scheduler(mode, service, **entry):
        await world.warm(service, urgent, world.images.amd)
        spec = {"priorityClassName": "urgent"}
        await world.create_pods(urgent, 1, world.images.amd, scheduler=SCHEDULER_NAMES[mode], cpu="1", spec=spec)
        await world.wait_all_bound(urgent, 1, 120)
    assert await world.count_placed(urgent) == {"amd64": 1}
    left = await world.count_placed(where)
    return NODES_OF_A_KIND - left["amd64"], NODES_OF_A_KIND - left["arm64"]


@pytest.mark.parametrize("mode", [Mode.SECOND, Mode.DEFAULT])
async def test_an_urgent_pod_evicts_one_pod_where_it_can_run(world: World, mode: Mode) -> None:
    """The candidates of the other architecture are taken out by the preempt verb, however cheap."""
    assert await evictions(world, mode, "none") == (1, 0)


async def test_required_affinity_does_as_much_without_the_verb(world: World) -> None:
    """With what the webhook writes kube-scheduler itself knows where eviction does not help."""
    assert await evictions(world, Mode.DEFAULT, "required", preemptVerb=None) == (1, 0)
