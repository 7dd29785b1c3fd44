"""What a pod costs that is refused again and again, in a cluster so large that kube-scheduler looks at a sample only.

The sample differs from try to try, and so do the counts in the pod's condition: each change of the condition is an
update of the pod, and an extender's refusal is tried again after any event, such an update included.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import NamedTuple

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, fake_node, pod
from testbed.shipped_files import Mode
from tests.e2e.world import SCHEDULER_NAMES, World

pytestmark = pytest.mark.e2e

NODES_OF_A_KIND = 500
WINDOW_SECONDS = 60.0
MOST = 12  # backoffs of 1, 2, 4, 8, 10, 10, … s end after 1, 3, 7, 15, 25, 35, 45 and 55 s
WITH_AFFINITY = {"example.com/affinity": "required"}


class Case(NamedTuple):
    """A pod that is refused: whose it is, whether the webhook saw it, and why it is refused."""

    mode: Mode
    affinity: str
    why: str

    @property
    def name(self) -> str:
        """The pod's name."""
        return f"{self.mode}-{self.affinity}-{self.why}"


CASES = [
    Case(mode, affinity, why)
    for mode in (Mode.SECOND, Mode.DEFAULT)
    for affinity in ("none", "required")
    for why in ("nowhere", "full")
]
REASONS = {
    "nowhere": "its image runs on no node",
    "full": "amd64 nodes are full, arm64 nodes have room",
}


class Counting:
    """Passes every call on to the service, and counts it by pod and verb."""

    def __init__(self, service: aiohttp.ClientSession) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._service = service

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The service's answer."""
        body = await request.read()
        name = msgspec.json.decode(body, type=KubernetesObject)["Pod"]["metadata"]["name"]
        self.calls[name, request.path.rpartition("/")[2]] += 1
        async with self._service.post(request.path, data=body) as response:
            return web.json_response(status=response.status, body=await response.read())


@asynccontextmanager
async def counting(service: ExtenderProcess) -> AsyncIterator[tuple[Counting, str]]:
    """The counter before the service, and where it listens."""
    async with aiohttp.ClientSession(service.scheduler_url) as session:
        counter = Counting(session)
        async with RawTestServer(counter.answer) as server:
            yield counter, str(server.make_url("")).rstrip("/")


async def add_full_cluster(world: World) -> None:
    """500 amd64 nodes, each taken whole by a pod, and 500 arm64 nodes with nothing on them.

    They come in a mixed order, in which kube-scheduler keeps them: so each sample has them in other numbers.
    """
    where = await world.namespace()
    nodes = [f"{kind}-{index}" for kind in ("amd64", "arm64") for index in range(NODES_OF_A_KIND)]
    random.Random(36).shuffle(nodes)
    await world.api.create_all(fake_node(name, name.partition("-")[0], cpu="1") for name in nodes)
    await world.api.create_all(
        pod(f"on-{name}", world.images.amd, namespace=where, cpu="1", spec={"nodeName": name})
        for name in nodes
        if name.startswith("amd64")
    )


async def create_refused(world: World) -> None:
    """One pod for each case; the webhook is registered for the namespace of those with affinity."""
    images = {"nowhere": world.images.fresh("s390x"), "full": world.images.fresh("amd64")}
    namespaces = {"none": await world.namespace(), "required": await world.namespace(labels=WITH_AFFINITY)}
    await world.api.create_all(
        pod(
            case.name,
            images[case.why],
            namespace=namespaces[case.affinity],
            labels={"example.com/refused": "true"},
            spec={"schedulerName": SCHEDULER_NAMES[case.mode] or "default-scheduler"},
        )
        for case in CASES
    )


async def count_patches(world: World, since: str) -> Counter[str]:
    """How often each refused pod is changed in the window; nobody but its scheduler does that, to its status."""
    changes: Counter[str] = Counter()
    selectors = {"labelSelector": "example.com/refused", "resourceVersion": since}
    with suppress(TimeoutError):
        async with asyncio.timeout(WINDOW_SECONDS), aclosing(world.api.watch("Pod", **selectors)) as events:
            async for change, found in events:
                changes[found["metadata"]["name"]] += change == "MODIFIED"
    return changes


@pytest.mark.slow
async def test_refused_pods_do_not_spin(world: World) -> None:
    """In a minute a refused pod costs the second scheduler's backoffs and no more; with affinity no call at all.

    What the default scheduler does without affinity is measured: its feature gates are the cluster's own.
    """
    await add_full_cluster(world)
    second = await world.start_service("admission.node_affinity=required")
    default = await world.start_service(mode=Mode.DEFAULT, admission=False)
    await world.register_webhook(second, namespace_selector={"matchLabels": WITH_AFFINITY})
    async with counting(second) as (at_second, second_url), counting(default) as (at_default, default_url):
        with world.second_scheduler(second_url), world.default_scheduler(default_url):
            before = await world.api.request("GET", "/api/v1/pods?limit=1")
            await create_refused(world)
            patches = await count_patches(world, before["metadata"]["resourceVersion"])
    calls = at_second.calls + at_default.calls
    assert set(patches) == {case.name for case in CASES}
    for case in CASES:
        name = case.name
        verbs = {verb: calls[name, verb] for verb in ("filter", "prioritize", "preempt")}
        world.figure(
            f"refused pod, {case.mode}, node_affinity: {case.affinity}, {REASONS[case.why]}: {verbs['filter']} filter "
            f"and {verbs['preempt']} preempt calls, {patches[name]} status patches in {WINDOW_SECONDS:g} s"
        )
    for case in CASES:
        name = case.name
        if case.affinity == "required":
            assert not any(key[0] == name for key in calls), name
        if case.mode is Mode.SECOND:
            assert calls[name, "filter"] <= MOST, name
            assert patches[name] <= MOST, name
        if case.affinity == "none":
            assert calls[name, "filter"] > 0, name
    assert await world.misplaced("") == []
