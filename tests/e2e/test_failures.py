"""What a real kube-scheduler makes of an extender that fails, row by row, and that nothing is restarted afterwards.

Faults that the service cannot be brought to commit are committed by a stand-in before it, pod by pod, so that the
pods around the unlucky one show whether they are affected. Being away and hanging are the service's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject
from testbed.shipped_files import SECOND_SCHEDULER, Mode
from tests.e2e.load import leaning_to
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

FAULT = "fault.example.com/"  # an annotation `fault.example.com/<verb>` says which fault the pod meets

# What is answered in place of the service's own answer.
ANSWERS: Mapping[str, tuple[int, str]] = {
    "status 500": (500, '{"Error": "nobody reads this"}'),
    "status 201": (201, '{"NodeNames": ["amd64-0"]}'),
    "garbage": (200, "<html>It works!</html>"),
    "truncated": (200, '{"NodeNames": ["amd64-0"'),
    "retry": (200, '{"Error": "the image is not known yet; to be tried again"}'),
    "stranger": (200, '{"NodeNames": ["nobody-knows-this-node"]}'),
    "fraction": (200, '[{"Host": "arm64-0", "Score": 7.5}, {"Host": "arm64-1", "Score": 7.5}]'),
    "no list": (200, '{"Host": "arm64-0", "Score": 10}'),
    "nothing": (200, "{}"),
}

# What the pod's user can read when its filter call fails so, under `ignorable: false`.
FILTER_FAULTS: Mapping[str, str] = {
    "hang": "Client.Timeout exceeded while awaiting headers",
    "reset": "EOF",
    "status 500": "code 500",
    "status 201": "code 201",
    "garbage": "invalid character '<'",
    "truncated": "unexpected EOF",
    "retry": "the image is not known yet; to be tried again",
    "stranger": "claims a filtered node",
}
PRIORITIZE_FAULTS = ("hang", "reset", "status 500", "garbage", "fraction", "no list")


class FaultyExtender:
    """Passes every call on to the service, except those of pods that ask for a fault; none any more once `healed`."""

    def __init__(self, service: aiohttp.ClientSession) -> None:
        self.healed = False
        self._service = service

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The service's answer, or the fault."""
        body = await request.read()
        fault = "" if self.healed else asked_fault(request.path, body)
        match fault:
            case "":
                async with self._service.post(request.path, data=body) as response:
                    return web.json_response(status=response.status, body=await response.read())
            case "hang":
                await asyncio.Event().wait()  # until the caller has had enough, which cancels it
            case "reset":
                assert request.transport is not None
                request.transport.abort()
        status, text = ANSWERS.get(fault, (500, ""))
        return web.json_response(status=status, text=text)


def asked_fault(path: str, body: bytes) -> str:
    """The fault that the pod in a request's body wants to meet at this verb; empty for none."""
    metadata = msgspec.json.decode(body, type=KubernetesObject)["Pod"]["metadata"]
    return str(metadata.get("annotations", {}).get(FAULT + path.rpartition("/")[2], ""))


@asynccontextmanager
async def faulty(service: ExtenderProcess) -> AsyncIterator[tuple[FaultyExtender, str]]:
    """The stand-in before the service, and the address where it listens."""
    async with aiohttp.ClientSession(service.scheduler_url) as session:
        extender = FaultyExtender(session)
        async with RawTestServer(extender.answer) as server:
            yield extender, str(server.make_url("/")).rstrip("/")


async def add_nodes(world: World) -> None:
    """Two nodes of each architecture with room for all."""
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 2, cpu="64")


async def add_unlucky(
    world: World, where: str, verb: str, fault: str, image: str, leaning: str, scheduler: str = ""
) -> str:
    """The name of a new pod that meets this fault at this verb."""
    [name] = await world.create_pods(
        where,
        1,
        image,
        prefix=f"{verb}-{fault.replace(' ', '-')}",
        scheduler=scheduler,
        annotations={FAULT + verb: fault},
        spec=leaning_to(leaning),
    )
    return name


async def add_lucky(world: World, where: str, prefix: str, scheduler: str = "") -> None:
    """Three amd64-only pods that kube-scheduler alone would put on arm64."""
    await world.create_pods(where, 3, world.images.amd, prefix=prefix, scheduler=scheduler, spec=leaning_to("arm64"))


async def test_not_ignorable_a_failing_filter_call_delays_its_own_pod_and_no_other(world: World) -> None:
    """Each unlucky pod is Pending as SchedulerError with the cause in its words; all are placed once it is over."""
    await add_nodes(world)
    service = await world.start_service("admission.node_affinity=none", admission=False)
    where, elsewhere = await world.namespace(), await world.namespace()
    async with faulty(service) as (extender, url):
        with world.second_scheduler(url, httpTimeout="300ms"), world.default_scheduler(""):
            unlucky = {
                fault: await add_unlucky(world, where, "filter", fault, world.images.amd, "arm64", SECOND_SCHEDULER)
                for fault in FILTER_FAULTS
            }
            await add_lucky(world, where, "meanwhile", SECOND_SCHEDULER)
            await world.create_pods(elsewhere, 3, world.images.multi)
            await world.wait_all_bound(where, 3)
            await world.wait_all_bound(elsewhere, 3)
            for fault, words in FILTER_FAULTS.items():
                refused = await world.wait_refused(where, unlucky[fault])
                assert (fault, refused["reason"]) == (fault, "SchedulerError")
                assert words in refused["message"], fault
            assert set(await world.placed(where)).isdisjoint(unlucky.values())
            extender.healed = True
            await world.wait_all_bound(where, 3 + len(unlucky))
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, 3 + len(unlucky))


async def test_ignorable_a_failing_filter_call_passes_every_node_for_its_own_pod_only(world: World) -> None:
    """Each unlucky pod goes where kube-scheduler alone would put it, wrongly here; the pods around it go rightly."""
    await add_nodes(world)
    service = await world.start_service(mode=Mode.DEFAULT, admission=False)
    where, open_window = await world.namespace(), await world.namespace()
    async with faulty(service) as (extender, url):
        with world.default_scheduler(url, httpTimeout="300ms"):
            for fault in FILTER_FAULTS:
                await add_unlucky(world, open_window, "filter", fault, world.images.amd, "arm64")
            await add_lucky(world, where, "meanwhile")
            await world.wait_all_bound(open_window, len(FILTER_FAULTS))
            await world.wait_all_bound(where, 3)
            extender.healed = True
            await add_lucky(world, where, "afterwards")
            await world.wait_all_bound(where, 6)
    assert await world.count_placed(open_window) == {"arm64": len(FILTER_FAULTS)}
    await world.assert_placed_rightly("default scheduler, node_affinity: none", where, 6)


@pytest.mark.parametrize("ignorable", [False, True], ids=["not ignorable", "ignorable"])
async def test_no_nodes_in_an_answer_is_a_refusal_and_not_an_error(world: World, ignorable: bool) -> None:
    """`{}` refuses every node and says nothing, whatever `ignorable` is: so the service must never answer it."""
    await add_nodes(world)
    service = await world.start_service(mode=Mode.DEFAULT, admission=False)
    where = await world.namespace()
    async with faulty(service) as (extender, url):
        with world.default_scheduler(url, ignorable=ignorable):
            refused = await world.wait_refused(
                where, await add_unlucky(world, where, "filter", "nothing", world.images.amd, "arm64")
            )
            assert refused["reason"] == "Unschedulable"
            assert refused["message"].startswith("0/4 nodes are available: ")
            assert "amd64" not in refused["message"]
            extender.healed = True
            await add_lucky(world, where, "afterwards")  # whose binding is an event that wakes the refused pod
            await world.wait_all_bound(where, 4)
    await world.assert_placed_rightly("default scheduler, node_affinity: none", where, 4)


@pytest.mark.parametrize("ignorable", [False, True], ids=["not ignorable", "ignorable"])
async def test_a_failing_prioritize_call_costs_the_preference_and_nothing_else(world: World, ignorable: bool) -> None:
    """A multi-arch pod that leans to amd64 goes to arm64 by our score, to amd64 when the call fails."""
    await add_nodes(world)
    service = await world.start_service("admission.node_affinity=none", admission=False)
    where = await world.namespace()
    async with faulty(service) as (extender, url):
        with world.second_scheduler(url, httpTimeout="300ms", ignorable=ignorable):
            unlucky = [
                await add_unlucky(world, where, "prioritize", fault, world.images.multi, "amd64", SECOND_SCHEDULER)
                for fault in (*PRIORITIZE_FAULTS, "")
            ]
            placed = await world.wait_all_bound(where, len(unlucky))
            extender.healed = True
            again = await world.create_pods(
                where, 1, world.images.multi, prefix="again", scheduler=SECOND_SCHEDULER, spec=leaning_to("amd64")
            )
            placed = await world.wait_all_bound(where, len(unlucky) + 1)
    sides = {name: placed[name].split("-")[0] for name in (*unlucky, *again)}
    assert sides == dict.fromkeys(unlucky[:-1], "amd64") | {unlucky[-1]: "arm64", again[0]: "arm64"}
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, len(unlucky) + 1)


OUTAGES: Mapping[str, tuple[Callable[[ExtenderProcess], None], Callable[[ExtenderProcess], None], str]] = {
    "down": (ExtenderProcess.kill, ExtenderProcess.launch, "connect: connection refused"),
    "hanging": (ExtenderProcess.freeze, ExtenderProcess.thaw, "Client.Timeout exceeded while awaiting headers"),
}


@pytest.mark.parametrize("outage", OUTAGES)
async def test_an_outage_of_one_service_is_not_felt_by_the_other_scheduler(world: World, outage: str) -> None:
    """The second scheduler's pods wait, the default one's are placed unasked; each recovers without a restart."""
    begin, end, words = OUTAGES[outage]
    await add_nodes(world)
    second = await world.start_service("admission.node_affinity=none", admission=False)
    default = await world.start_service(mode=Mode.DEFAULT, admission=False)
    seconds, defaults, open_window = [await world.namespace() for _ in range(3)]
    with world.second_scheduler(second), world.default_scheduler(default):
        await add_lucky(world, seconds, "before", SECOND_SCHEDULER)
        await add_lucky(world, defaults, "before")
        await world.wait_all_bound(seconds, 3)
        await world.wait_all_bound(defaults, 3)

        begin(second)
        await add_lucky(world, seconds, "away", SECOND_SCHEDULER)
        await add_lucky(world, defaults, "other-away")
        refused = await world.wait_refused(seconds, "away-2")
        await world.wait_all_bound(defaults, 6)
        assert len(await world.placed(seconds)) == 3
        end(second)
        await world.wait_all_bound(seconds, 6)

        begin(default)
        await add_lucky(world, open_window, "away")
        await add_lucky(world, seconds, "other-away", SECOND_SCHEDULER)
        await world.wait_all_bound(open_window, 3)
        await world.wait_all_bound(seconds, 9)
        end(default)
        await default.wait_until_ready()
        await add_lucky(world, defaults, "after")
        await world.wait_all_bound(defaults, 9)
    assert refused["reason"] == "SchedulerError"
    assert words in refused["message"]
    assert await world.count_placed(open_window) == {"arm64": 3}
    await world.assert_placed_rightly("second scheduler, node_affinity: none", seconds, 9)
    await world.assert_placed_rightly("default scheduler, node_affinity: none", defaults, 9)
