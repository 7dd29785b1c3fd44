"""Preference by filter on a real kube-scheduler: pods go to the preferred architecture while it has room.

It costs no eviction more than a preference by scores, and no pod waits that could run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
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

ZONE = "topology.kubernetes.io/zone"
PRIORITIES = {"cheap": 0, "fair": 50, "urgent": 1000}
FULL = 5
NO_WEBHOOK = "admission.node_affinity=none"


@contextmanager
def scheduling(world: World, service: ExtenderProcess, **fields: object) -> Iterator[None]:
    entry = {"prioritizeVerb": None}
    configuration = scheduler_configuration(
        Mode.SECOND, service.scheduler_url, entry, clientConnection=dict(FAST), **fields
    )
    with running_scheduler(world.cluster, configuration, "kube-second-scheduler", scheduler_flags(Mode.SECOND)):
        yield


async def preferring(world: World) -> ExtenderProcess:
    """The service with its shipped preference for arm64, stated by filter."""
    return await world.start_service("placement.preference_by=filter", NO_WEBHOOK, admission=False)


async def create(world: World, where: str, count: int, *, prefix: str = "pod", **given: Any) -> None:
    await world.create_pods(where, count, world.images.multi, prefix=prefix, scheduler=SECOND_SCHEDULER, **given)


async def test_pods_fill_the_preferred_pool_first(world: World) -> None:
    """60 of them have room on arm64 and stand there, each one; the next 60 stand on amd64, and none waits."""
    for architecture in ("amd64", "arm64"):
        await world.api.create_all(
            fake_node(f"{architecture}-{number}", architecture, cpu="1500m") for number in range(4)
        )
    where = await world.namespace()
    service = await preferring(world)
    with scheduling(world, service):
        await world.warm(service, where, world.images.multi)
        await create(world, where, 60, prefix="first")
        await world.wait_all_bound(where, 60)
        assert await world.count_placed(where) == {"arm64": 60}
        await create(world, where, 60, prefix="next")
        await world.wait_all_bound(where, 120)
    assert await world.count_placed(where) == {"arm64": 60, "amd64": 60}
    assert await service.calls("prioritize") == 0


async def fill(world: World, where: str, priorities: Mapping[str, str]) -> None:
    for architecture, priority in priorities.items():
        for node in await world.create_nodes(architecture, FULL, cpu="1", prefix=f"full-{architecture}"):
            spec = {"nodeName": node, "priorityClassName": priority}
            await world.api.create(pod(f"on-{node}", world.images.multi, namespace=where, cpu="1", spec=spec))


async def test_where_all_pools_are_full_the_cheapest_pod_is_evicted(world: World) -> None:
    """One, though it is not on the preferred architecture; the urgent pod then gets the node it is nominated for."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    await fill(world, where, {"amd64": "cheap", "arm64": "fair"})
    service = await preferring(world)
    with scheduling(world, service):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 1, cpu="1", spec={"priorityClassName": "urgent"})
        await world.wait_all_bound(urgent, 1)
    assert await world.count_placed(where) == {"amd64": FULL - 1, "arm64": FULL}
    assert await world.count_placed(urgent) == {"amd64": 1}


async def test_a_full_preferred_pool_evicts_nobody_while_another_has_room(world: World) -> None:
    """The urgent pods go where there is room, as kube-scheduler asks about no node that is full."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    await fill(world, where, {"arm64": "cheap"})
    await world.create_nodes("amd64", 2, cpu="4")
    service = await preferring(world)
    with scheduling(world, service):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 8, cpu="1", spec={"priorityClassName": "urgent"})
        await world.wait_all_bound(urgent, 8)
    assert await world.count_placed(where) == {"arm64": FULL}
    assert await world.count_placed(urgent) == {"amd64": 8}


async def test_a_nominated_pod_gets_its_node_when_the_victim_has_gone(world: World) -> None:
    """It waits for the victim on amd64, nominated for that node, while filter has arm64 first for all others."""
    for name, value in PRIORITIES.items():
        await world.create_priority_class(name, value)
    where, urgent = await world.namespace(), await world.namespace()
    [node] = await world.create_nodes("amd64", 1, cpu="1")
    spec = {"nodeName": node, "priorityClassName": "cheap", "terminationGracePeriodSeconds": 600}
    await world.api.create(pod("victim", world.images.multi, namespace=where, cpu="1", spec=spec))
    service = await preferring(world)
    with scheduling(world, service):
        await world.warm(service, urgent, world.images.multi)
        await create(world, urgent, 1, cpu="1", spec={"priorityClassName": "urgent"})
        await world.api.wait_for("Pod", lambda each: each["status"].get("nominatedNodeName") == node, urgent)
        await world.create_nodes("arm64", 1, cpu="500m")
        await create(world, where, 1, prefix="small", cpu="500m")
        await world.api.wait_for("Pod", lambda each: each["spec"].get("nodeName") == "arm64-0", where)
        await _end(world.api, where, "victim")
        await world.wait_all_bound(urgent, 1)
    assert set((await world.placed(urgent)).values()) == {node}


async def _end(api: ApiClient, where: str, name: str) -> None:
    await api.request("DELETE", f"/api/v1/namespaces/{where}/pods/{name}?gracePeriodSeconds=0")


async def test_topology_spread_that_forbids_nodes_comes_first(world: World) -> None:
    """arm64 is in one of two zones: pods are as even over the zones as they ask to be, and all of them run."""
    for zone, architectures in (("a", ("amd64", "arm64")), ("b", ("amd64",))):
        for architecture in architectures:
            names = [f"{zone}-{architecture}-{number}" for number in range(3)]
            await world.api.create_all(fake_node(name, architecture, labels={ZONE: zone}) for name in names)
    where = await world.namespace()
    service = await preferring(world)
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    with scheduling(world, service):
        await world.warm(service, where, world.images.multi)
        spec = {"topologySpreadConstraints": [constraint], "schedulerName": SECOND_SCHEDULER}
        labels = {"app": "spread"}
        await world.api.create_all(
            pod(f"pod-{number}", world.images.multi, namespace=where, labels=labels, spec=spec) for number in range(20)
        )
        placed = await world.wait_all_bound(where, 20)
    kinds = Counter(node.rpartition("-")[0] for node in placed.values())
    assert kinds == {"a-arm64": 10, "b-amd64": 10}


async def test_a_sample_of_nodes_leaves_no_pod_waiting(world: World) -> None:
    """240 nodes, of which 24 are arm64: asked about 100 of them a pod, each pod stands."""
    made = [(f"node-{number:03}", "arm64" if number % 10 == 0 else "amd64") for number in range(240)]
    await world.api.create_all(fake_node(name, architecture, cpu="1") for name, architecture in made)
    where = await world.namespace()
    service = await preferring(world)
    with scheduling(world, service, percentageOfNodesToScore=5):
        await world.warm(service, where, world.images.multi)
        await create(world, where, 120)
        await world.wait_all_bound(where, 120)
    counted = await world.count_placed(where)
    world.figure(f"strict preference: 120 pods, percentageOfNodesToScore 5, room for 240: {dict(counted)}")
    assert counted.total() == 120
