"""What a real kube-scheduler makes of an extender that fails, and that nothing is restarted afterwards.

Faults that the service cannot be brought to commit are committed by a stand-in before it, pod by pod, so that the
pods around the unlucky one show whether they are affected. Being away and hanging are the service's own.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
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

FAULT = "fault.example.com/filter"  # an annotation that says which fault the pod meets at that verb

# What is answered in place of the service's own answer.
ANSWERS: Mapping[str, tuple[int, str]] = {
    "status 500": (500, '{"Error": "nobody reads this"}'),
    "status 201": (201, '{"NodeNames": ["amd64-0"]}'),
    "garbage": (200, "<html>It works!</html>"),
    "truncated": (200, '{"NodeNames": ["amd64-0"'),
    "retry": (200, '{"Error": "the image is not known yet; to be tried again"}'),
    "stranger": (200, '{"NodeNames": ["nobody-knows-this-node"]}'),
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


class FaultyExtender:
    """Passes every call on to the service, except those of pods that ask for a fault; none any more once `healed`."""

    def __init__(self, service: aiohttp.ClientSession) -> None:
        self.healed = False
        self._service = service

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
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
    metadata = msgspec.json.decode(body, type=KubernetesObject)["Pod"]["metadata"]
    return str(metadata.get("annotations", {}).get(FAULT, "")) if path.endswith("/filter") else ""


@asynccontextmanager
async def faulty(service: ExtenderProcess) -> AsyncIterator[tuple[FaultyExtender, str]]:
    async with aiohttp.ClientSession(service.scheduler_url) as session:
        extender = FaultyExtender(session)
        async with RawTestServer(extender.answer) as server:
            yield extender, str(server.make_url("/")).rstrip("/")


async def add_lucky(world: World, where: str, prefix: str, scheduler: str = "") -> None:
    """Three amd64-only pods that kube-scheduler alone would put on arm64."""
    await world.create_pods(where, 3, world.images.amd, prefix=prefix, scheduler=scheduler, spec=leaning_to("arm64"))


async def test_not_ignorable_a_failing_filter_call_delays_its_own_pod_and_no_other(world: World) -> None:
    """Each unlucky pod is Pending as SchedulerError with the cause in its words; all are placed once it is over."""
    await world.create_both(2, cpu="64")
    service = await world.start_service("admission.node_affinity=none", admission=False)
    where, elsewhere = await world.namespace(), await world.namespace()
    async with faulty(service) as (extender, url):
        with world.second_scheduler(url, httpTimeout="300ms"), world.default_scheduler(""):
            unlucky = {fault: f"{fault.replace(' ', '-')}-0" for fault in FILTER_FAULTS}
            for fault, name in unlucky.items():
                named = {"prefix": name.removesuffix("-0"), "scheduler": SECOND_SCHEDULER}
                asking, spec = {FAULT: fault}, leaning_to("arm64")
                await world.create_pods(where, 1, world.images.amd, **named, annotations=asking, spec=spec)
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


async def test_an_outage_of_one_service_is_not_felt_by_the_other_scheduler(world: World) -> None:
    """The second scheduler's pods wait, the default one's are placed unasked; each recovers without a restart.

    The one is gone, and the other hangs.
    """
    await world.create_both(2, cpu="64")
    second = await world.start_service("admission.node_affinity=none", admission=False)
    default = await world.start_service(mode=Mode.DEFAULT, admission=False)
    seconds, defaults, open_window = [await world.namespace() for _ in range(3)]
    with world.second_scheduler(second), world.default_scheduler(default):
        await add_lucky(world, seconds, "before", SECOND_SCHEDULER)
        await add_lucky(world, defaults, "before")
        await world.wait_all_bound(seconds, 3)
        await world.wait_all_bound(defaults, 3)

        second.kill()
        await add_lucky(world, seconds, "away", SECOND_SCHEDULER)
        await add_lucky(world, defaults, "other-away")
        refused = await world.wait_refused(seconds, "away-2")
        await world.wait_all_bound(defaults, 6)
        assert len(await world.placed(seconds)) == 3
        await second.start()
        await world.wait_all_bound(seconds, 6)

        default.freeze()
        await add_lucky(world, open_window, "away")
        await add_lucky(world, seconds, "other-away", SECOND_SCHEDULER)
        await world.wait_all_bound(open_window, 3)
        await world.wait_all_bound(seconds, 9)
        default.thaw()
        await default.wait_until_ready()
        await add_lucky(world, defaults, "after")
        await world.wait_all_bound(defaults, 9)
    assert refused["reason"] == "SchedulerError"
    assert "connect: connection refused" in refused["message"]
    assert await world.count_placed(open_window) == {"arm64": 3}
    await world.assert_placed_rightly("second scheduler, node_affinity: none", seconds, 9)
    await world.assert_placed_rightly("default scheduler, node_affinity: none", defaults, 9)
