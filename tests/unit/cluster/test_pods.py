"""Pending pods: announced while somebody wants to know of them, and none is kept."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from extender.background import in_background
from extender.cluster.listwatch import LOST_SECONDS
from extender.cluster.views import PODS, PendingPods
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import images_of
from testbed.clock import Clock
from testbed.eventually import eventually
from testbed.memory_network import run_in_memory
from tests.unit.cluster.scripted_api import LOST, Script, ScriptedApi

POD = (
    b'{"metadata":{"name":"web","namespace":"shop","uid":"u1","managedFields":[{}]},"status":{"phase":"Pending"},'
    b'"spec":{"containers":[{"image":"web:1","resources":{}}],"volumes":[{"image":{"reference":"models:2"}},{}]}}'
)
FOREVER = 60.0


def event(kind: str, document: bytes = POD) -> bytes:
    return b'{"type":"%s","object":%s}' % (kind.encode(), document)


def api(*watches: Script) -> ScriptedApi:
    """An API server whose watches stay open where the scripts have ended."""
    return ScriptedApi(watches=watches, then=(None,))


class Running(NamedTuple):
    """Pods of a cluster as they are announced, and the pauses that were made."""

    pods: PendingPods
    announced: list[Pod]
    delays: list[float]


@asynccontextmanager
async def running(cluster: ScriptedApi) -> AsyncIterator[Running]:
    delays, announced = list[float](), list[Pod]()

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await asyncio.sleep(0)

    pods = PendingPods(cluster, clock=Clock(), random=lambda: 1.0, sleep=sleep, linger_seconds=FOREVER)
    async with in_background(pods.run(announced.append)):
        yield Running(pods, announced, delays)


async def test_pods_that_wait_are_asked_of_the_cache_of_the_api_server_once_somebody_wants_to_know() -> None:
    """A watch costs the API server two events for every pod. It is of those without a node, by fields it supports."""
    cluster = api()
    async with running(cluster) as run:
        for _ in range(20):
            await asyncio.sleep(0)
        assert cluster.watches == []
        run.pods.watch_briefly()
        await eventually(lambda: cluster.open)
    (query,) = cluster.watches
    assert (cluster.open, cluster.paths, query["resourceVersion"], cluster.lists) == (0, [PODS], "0", [])
    assert query["fieldSelector"] == "spec.nodeName=,status.phase=Pending"
    assert cluster.stalls == [LOST_SECONDS]


async def test_pod_is_announced_as_it_appears_and_as_it_changes() -> None:
    """Images may change while a pod waits; one that is bound or gone is left alone."""
    cluster = api([event("ADDED"), event("MODIFIED"), event("DELETED"), event("BOOKMARK"), None])
    async with running(cluster) as run:
        run.pods.watch_briefly()
        await cluster.said.wait()
    assert [[image.reference for image in images_of(pod)] for pod in run.announced] == [["web:1", "models:2"]] * 2
    assert [pod.metadata and pod.metadata.uid for pod in run.announced] == ["u1"] * 2


async def test_many_pods_that_come_together_hold_up_nobody() -> None:
    """Each takes up to a millisecond, and kube-scheduler and the API server wait for answers meanwhile."""
    cluster = api([*[event("ADDED")] * 50, None])
    async with running(cluster) as run:
        run.pods.watch_briefly()
        seen = [0]
        while not cluster.said.is_set():
            await asyncio.sleep(0)
            seen.append(len(run.announced))
    assert seen[-1] == 50
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


def test_watch_ends_when_nobody_has_wanted_to_know_for_a_while() -> None:
    """Looking again keeps it, and asks for nothing twice; the next look begins anew, with all that wait."""

    async def run() -> None:
        cluster = api([event("ADDED"), None], [event("ADDED"), None])
        async with running(cluster) as run:
            for looks in (1, 2):
                for _ in range(10):
                    run.pods.watch_briefly()
                    await asyncio.sleep(FOREVER / 2)
                    assert (cluster.open, len(cluster.watches), len(run.announced)) == (1, looks, looks)
                await asyncio.sleep(2 * FOREVER)
                assert cluster.open == 0
            await asyncio.sleep(10 * FOREVER)
        assert len(cluster.watches) == 2
        assert run.delays == []

    run_in_memory(lambda _: run())


async def test_watch_that_is_lost_goes_on_where_it_was() -> None:
    """By the loop of every watch: after a pause that grows, and of pods that were announced nothing is said again."""
    seen = b'{"metadata":{"name":"web","resourceVersion":"7"}}'
    cluster = api([event("ADDED", seen), LOST], [LOST], [event("ADDED"), None])
    async with running(cluster) as run:
        run.pods.watch_briefly()
        await eventually(lambda: len(run.announced) == 2)
    assert cluster.versions() == ["0", "7", "7"]
    assert run.delays == [0.5, 1.0]
