"""Pending pods: announced while somebody wants to know of them, and none is kept."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from extender.cluster.client import ClusterRefused
from extender.cluster.views import PODS, PendingPods
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import images_of
from testbed.clock import Clock
from testbed.eventually import eventually
from testbed.simulated_time import run_simulated
from tests.unit.cluster.scripted_api import LOST, Script, ScriptedApi

POD = (
    b'{"metadata":{"name":"web","namespace":"shop","uid":"u1","managedFields":[{}]},"status":{"phase":"Pending"},'
    b'"spec":{"containers":[{"image":"web:1","resources":{}}],"volumes":[{"image":{"reference":"models:2"}},{}]}}'
)
ODD = b'{"metadata":{"name":"odd"},"spec":{"containers":"none"}}'
REFUSED = ClusterRefused("/api/v1/pods: HTTP 403", 403)
FOREVER = 60.0


def event(kind: str, document: bytes = POD) -> bytes:
    return b'{"type":"%s","object":%s}' % (kind.encode(), document)


def api(*watches: Script) -> ScriptedApi:
    """An API server whose watches stay open where the scripts have ended."""
    return ScriptedApi(watches=watches, then=(None,))


class Running:
    """Pending pods of that cluster as they are announced; `delays` are the pauses that were made."""

    def __init__(self, cluster: ScriptedApi, linger_seconds: float) -> None:
        self.announced: list[Pod] = []
        self.delays: list[float] = []
        self.pods = PendingPods(
            cluster, clock=Clock(), random=lambda: 1.0, sleep=self._sleep, linger_seconds=linger_seconds
        )
        self.task = asyncio.create_task(self.pods.run(self.announced.append))

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def running(cluster: ScriptedApi, linger_seconds: float = FOREVER) -> AsyncIterator[Running]:
    run = Running(cluster, linger_seconds)
    try:
        yield run
    finally:
        run.task.cancel()
        await asyncio.wait([run.task])


async def test_nothing_is_asked_before_somebody_wants_to_know() -> None:
    """A watch costs the API server two events for every pod."""
    cluster = api()
    async with running(cluster) as run:
        for _ in range(20):
            await asyncio.sleep(0)
        assert cluster.watches == []
        run.pods.look()
        await eventually(lambda: cluster.open)
    assert cluster.open == 0


async def test_pods_that_wait_are_asked_of_the_cache_of_the_api_server() -> None:
    """Those without a node, by fields it supports, at whatever version it has; a watch that hangs ends later."""
    cluster = api()
    async with running(cluster) as run:
        run.pods.look()
        await eventually(lambda: cluster.open)
    (query,) = cluster.watches
    assert (cluster.paths, query["resourceVersion"], cluster.lists) == ([PODS], "0", [])
    assert query["fieldSelector"] == "spec.nodeName=,status.phase=Pending"
    assert cluster.stalls[0] > int(query["timeoutSeconds"])


async def test_pod_is_announced_as_it_appears_and_as_it_changes() -> None:
    """Images may change while a pod waits; one that is bound or gone is left alone."""
    cluster = api([event("ADDED"), event("MODIFIED"), event("DELETED"), event("BOOKMARK"), None])
    async with running(cluster) as run:
        run.pods.look()
        await cluster.said.wait()
    assert [[image.reference for image in images_of(pod)] for pod in run.announced] == [["web:1", "models:2"]] * 2
    assert run.announced[0].metadata is not None
    assert run.announced[0].metadata.uid == "u1"


async def test_many_pods_that_come_together_hold_up_nobody() -> None:
    """Each takes up to a millisecond, and kube-scheduler and the API server wait for answers meanwhile."""
    cluster = api([*[event("ADDED")] * 50, None])
    async with running(cluster) as run:
        run.pods.look()
        seen = [0]
        while not cluster.said.is_set():
            await asyncio.sleep(0)
            seen.append(len(run.announced))
    assert seen[-1] == 50
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


async def test_pod_of_another_shape_hides_no_other() -> None:
    """It is said which one is passed over."""
    cluster = api([event("ADDED", ODD), event("ADDED"), None])
    with capture_logs() as logs:
        async with running(cluster) as run:
            run.pods.look()
            await eventually(lambda: run.announced)
    assert [(entry["event"], entry["resource"], entry["name"]) for entry in logs] == [
        ("watch.object_skipped", "pods", "odd")
    ]


def test_watch_ends_when_nobody_has_wanted_to_know_for_a_while() -> None:
    """Looking again keeps it, and asks for nothing twice; the next look begins anew, with all that wait."""

    async def run() -> None:
        cluster = api([event("ADDED"), None], [event("ADDED"), None])
        async with running(cluster) as run:
            for looks in (1, 2):
                for _ in range(10):
                    run.pods.look()
                    await asyncio.sleep(FOREVER / 2)
                    assert (cluster.open, len(cluster.watches), len(run.announced)) == (1, looks, looks)
                await asyncio.sleep(2 * FOREVER)
                assert cluster.open == 0
            await asyncio.sleep(10 * FOREVER)
        assert len(cluster.watches) == 2
        assert run.delays == []

    run_simulated(run())


async def test_watch_that_is_lost_goes_on_where_it_was() -> None:
    """By the loop of every watch: after a pause that grows, and of pods that were announced nothing is said again."""
    seen = b'{"metadata":{"name":"web","resourceVersion":"7"}}'
    cluster = api([event("ADDED", seen), LOST], [LOST], [event("ADDED"), None])
    async with running(cluster) as run:
        run.pods.look()
        await eventually(lambda: len(run.announced) == 2)
    assert cluster.versions() == ["0", "7", "7"]
    assert run.delays == [0.5, 1.0]
