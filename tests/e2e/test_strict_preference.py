"""Preference by filter on a real kube-scheduler: pods go to the preferred architecture while it has room.

It costs no eviction more than a preference by scores, and no pod waits that could run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from testbed.api_client import ApiClient
from testbed.cluster_provider import running_scheduler
from testbed.extender_process import ExtenderProcess
from testbed.objects import fake_node, pod
from testbed.shipped_files import SECOND_SCHEDULER, Mode, scheduler_configuration, scheduler_flags
from tests.e2e.world import FAST, World

pytestmark = pytest.mark.e2e

BY = pytest.mark.parametrize("by", [pytest.param("score", marks=pytest.mark.slow), "filter"])
ZONE = "topology.kubernetes.io/zone"
PRIORITIES = {"cheap": 0, "fair": 50, "urgent": 1000}
NO_WEBHOOK = "admission.node_affinity=none"


@contextmanager
def scheduling(world: World, service: ExtenderProcess, by: str, **fields: object) -> Iterator[None]:
    """Runs the second scheduler, which does not ask for scores if the preference is by filter."""
    entry = {"prioritizeVerb": None} if by == "filter" else {}
    configuration = scheduler_configuration(
        Mode.SECOND, service.scheduler_url, entry, clientConnection=dict(FAST), **fields
    )
    with running_scheduler(world.cluster, configuration, "kube-second-scheduler", scheduler_flags(Mode.SECOND)):
        yield


async def preferring(world: World, by: str) -> ExtenderProcess:
    """Returns the service with its shipped preference for arm64, stated by that verb."""
    return await world.start_service(f"placement.preference_by={by}", NO_WEBHOOK, admission=False)


async def create(world: World, where: str, count: int, *, prefix: str = "pod", **given: Any) -> None:
    """Creates so many multi-arch pods of the second scheduler."""
    await world.create_pods(where, count, world.images.multi, prefix=prefix, scheduler=SECOND_SCHEDULER, **given)


async def test_hundreds_of_pods_fill_the_preferred_pool_first(world: World) -> None:
    """300 of them have room on arm64 and stand there, each one; the next 300 stand on amd64, and none waits."""
    for architecture in ("amd64", "arm64"):
        nodes = (fake_node(f"{architecture}-{number}", architecture, cpu="7500m") for number in range(4))
        await world.api.create_all(nodes)
    where = await world.namespace()
    service = await preferring(world, "filter")
    with scheduling(world, service, "filter"):
        await world.warm(service, where, world.images.multi)
        await create(world, where, 300, prefix="first")
        await world.wait_all_bound(where, 300, 120)
        first = await world.count_placed(where)
        await create(world, where, 300, prefix="next")
        await world.wait_all_bound(where, 600, 120)
    both = await world.count_placed(where)
    world.figure(f"strict preference: first 300 pods {dict(first)}, 600 pods {dict(both)}")
    assert first == {"arm64": 300}
    assert both == {"arm64": 300, "amd64": 300}
    assert await service.calls("prioritize") == 0


async def fill(world: World, where: str, priorities: Mapping[str, str], *, nodes: int = 5) -> None:
    """Nodes of each architecture in `priorities`, each full with one pod of that priority."""
    for architecture, priority in priorities.items():
        for node in await world.create_nodes(architecture, nodes, cpu="1", prefix=f"full-{architecture}"):
            spec = {"nodeName": node, "priorityClassName": priority}
            await world.api.create(pod(f"on-{node}", world.images.multi, namespace=where, cpu="1", spec=spec))


async def evicted(world: World, where: str, before: Mapping[str, int]) -> dict[str, int]:
    """Returns how many pods fewer than before there are on each architecture."""
    left = await world.count_placed(where)
    return {architecture: count - left[architecture] for architecture, count in before.items()}


@BY
@pytest.mark.parametrize(
    ("priorities", "victims", "lands"),
    [
        pytest.param({"amd64": "cheap", "arm64": "fair"}, {"amd64": 1, "arm64": 0}, "amd64", id="cheaper elsewhere"),
        pytest.param({"amd64": "fair", "arm64": "cheap"}, {"amd64": 0, "arm64": 1}, "arm64", id="cheaper there"),
    ],
)
async def test_where_all_pools_are_full_the_same_pod_is_evicted(
    world: World, by: str, priorities: Mapping[str, str], victims: dict[str, int], lands: str
) -> None:
    """One, the cheapest, on either architecture; the urgent pod then gets the node it is nominated for."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    await fill(world, where, priorities)
    before = await world.count_placed(where)
    service = await preferring(world, by)
    with scheduling(world, service, by):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 1, cpu="1", spec={"priorityClassName": "urgent"})
        await world.wait_all_bound(urgent, 1, 60)
    assert await evicted(world, where, before) == victims
    assert await world.count_placed(urgent) == {lands: 1}
    world.figure(f"strict preference: preference by {by}, {victims} evicted")


@BY
async def test_a_full_preferred_pool_evicts_nobody_while_another_has_room(world: World, by: str) -> None:
    """The urgent pods go where there is room, as kube-scheduler asks about no node that is full."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    await fill(world, where, {"arm64": "cheap"})
    before = await world.count_placed(where)
    await world.create_nodes("amd64", 2, cpu="4")
    service = await preferring(world, by)
    with scheduling(world, service, by):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 8, cpu="1", spec={"priorityClassName": "urgent"})
        await world.wait_all_bound(urgent, 8, 60)
    assert await evicted(world, where, before) == {"arm64": 0}
    assert await world.count_placed(urgent) == {"amd64": 8}


@BY
async def test_a_nominated_pod_gets_its_node_when_the_victim_has_gone(world: World, by: str) -> None:
    """It waits for the victim on amd64, nominated for that node, while filter has arm64 first for all others."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    [node] = await world.create_nodes("amd64", 1, cpu="1")
    spec = {"nodeName": node, "priorityClassName": "cheap", "terminationGracePeriodSeconds": 600}
    await world.api.create(pod("victim", world.images.multi, namespace=where, cpu="1", spec=spec))
    service = await preferring(world, by)
    with scheduling(world, service, by):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 1, cpu="1", spec={"priorityClassName": "urgent"})
        await world.api.wait_for("Pod", lambda each: each["status"].get("nominatedNodeName") == node, urgent)
        await world.create_nodes("arm64", 1, cpu="500m")
        await create(world, where, 1, prefix="small", cpu="500m")
        await world.api.wait_for("Pod", lambda each: each["spec"].get("nodeName") == "arm64-0", where)
        await _end(world.api, where, "victim")
        await world.wait_all_bound(urgent, 1, 60)
    assert set((await world.placed(urgent)).values()) == {node}


async def _end(api: ApiClient, where: str, name: str) -> None:
    """Ends a pod that is being deleted, as its kubelet would."""
    await api.request("DELETE", f"/api/v1/namespaces/{where}/pods/{name}?gracePeriodSeconds=0")


@BY
async def test_topology_spread_that_forbids_nodes_comes_first(world: World, by: str) -> None:
    """arm64 is in one of two zones: pods are as even over the zones as they ask to be, and all of them run."""
    for zone, architectures in (("a", ("amd64", "arm64")), ("b", ("amd64",))):
        for architecture in architectures:
            names = [f"{zone}-{architecture}-{number}" for number in range(3)]
            await world.api.create_all(fake_node(name, architecture, labels={ZONE: zone}) for name in names)
    where = await world.namespace()
    service = await preferring(world, by)
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    with scheduling(world, service, by):
        await world.warm(service, where, world.images.multi)
        spec = {"topologySpreadConstraints": [constraint], "schedulerName": SECOND_SCHEDULER}
        labels = {"app": "spread"}
        await world.api.create_all(
            pod(f"pod-{number}", world.images.multi, namespace=where, labels=labels, spec=spec) for number in range(20)
        )
        placed = await world.wait_all_bound(where, 20)
    kinds = Counter(node.rpartition("-")[0] for node in placed.values())
    assert kinds["b-amd64"] == 10
    assert kinds["a-amd64"] + kinds["a-arm64"] == 10
    if by == "filter":
        assert kinds == {"a-arm64": 10, "b-amd64": 10}


@pytest.mark.parametrize("percentage", [5, 100])
async def test_a_sample_of_nodes_leaves_no_pod_waiting(world: World, percentage: int) -> None:
    """240 nodes, of which 24 are arm64: asked about 100 a pod, or about all; each pod stands, on arm64 if it is asked.

    What the arm64 nodes have room for stands there if kube-scheduler asks about all nodes.
    """
    made: Sequence[tuple[str, str]] = [
        (f"node-{number:03}", "arm64" if number % 10 == 0 else "amd64") for number in range(240)
    ]
    await world.api.create_all(fake_node(name, architecture, cpu="1") for name, architecture in made)
    where = await world.namespace()
    service = await preferring(world, "filter")
    with scheduling(world, service, "filter", percentageOfNodesToScore=percentage):
        await world.warm(service, where, world.images.multi)
        await create(world, where, 300)
        await world.wait_all_bound(where, 300, 120)
    counted = await world.count_placed(where)
    world.figure(f"strict preference: 300 pods, percentageOfNodesToScore {percentage}, room for 240: {dict(counted)}")
    assert counted.total() == 300
    assert counted["arm64"] <= 240
    if percentage == 100:
        assert counted == {"arm64": 240, "amd64": 60}
