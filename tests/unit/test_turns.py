"""Turns: how many at once, whose is next, and what becomes of those that wait."""

import asyncio
import gc
import heapq
import math
import time
from collections.abc import Coroutine, Sequence
from contextvars import Context
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.budgets import OPERATOR, UNAUTHENTICATED, declare_budget, use_of
from extender.turns import LAPSE_SECONDS, Interest, TurnLost, TurnRevoked, Turns, set_interest
from testbed.clock import Clock

SPEC = declare_budget("tests.turns.lookups", unit="lookups", total=16, most_each=8, why="a test")


class Job(NamedTuple):
    arrives_at: float
    tenant: str
    host: str
    lasts_seconds: float


class Simulation:
    """Jobs that take turns, on a clock that jumps from one event to the next."""

    def __init__(self, turns: Turns, clock: Clock) -> None:
        self.turns = turns
        self.clock = clock
        self.waits: dict[int, float] = {}
        self.lost: list[int] = []
        self.most_held = 0
        self._held = 0
        self._ends: list[tuple[float, int, asyncio.Event]] = []

    async def run(self, jobs: Sequence[Job]) -> None:
        """Runs all jobs to their ends."""
        start = self.clock.now
        arrivals = sorted((job.arrives_at, number) for number, job in enumerate(jobs))
        tasks = []
        while arrivals or self._ends:
            if not self._ends or (arrivals and start + arrivals[0][0] <= self._ends[0][0]):
                at, number = arrivals.pop(0)
                self.clock.now = max(self.clock.now, start + at)
                context = Context()
                context.run(set_interest, Interest(jobs[number].tenant, self.clock.now))
                tasks.append(asyncio.get_running_loop().create_task(self._work(number, jobs[number]), context=context))
            else:
                self.clock.now, _, end = heapq.heappop(self._ends)
                end.set()
            await settle()
        await asyncio.gather(*tasks)

    async def _work(self, number: int, job: Job) -> None:
        arrived = self.clock.now
        end = asyncio.Event()
        try:
            async with self.turns.turn(job.host):
                self._held += 1
                self.most_held = max(self.most_held, self._held)
                self.waits[number] = self.clock.now - arrived
                heapq.heappush(self._ends, (self.clock.now + job.lasts_seconds, number, end))
                await end.wait()
                self._held -= 1
        except TurnLost:
            self.lost.append(number)


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(4):
        await asyncio.sleep(0)


def simulate(jobs: Sequence[Job], **limits: int) -> Simulation:
    """Runs the jobs on turns with these limits."""
    clock = Clock()
    simulation = Simulation(Turns(SPEC, clock, **limits), clock)
    asyncio.run(simulation.run(jobs))
    assert simulation.turns.waiting == 0
    assert use_of(SPEC).in_use == 0
    return simulation


attackers = st.builds(
    Job,
    arrives_at=st.floats(0, 20),
    tenant=st.sampled_from(["mallory", "eve", "trudy", UNAUTHENTICATED]),
    host=st.sampled_from(["slow.example", "registry.example", "other.example"]),
    lasts_seconds=st.floats(0.01, 10),
)


@settings(max_examples=150, deadline=None)
@given(
    attacks=st.lists(attackers, max_size=120),
    arrivals=st.lists(st.floats(0, 25), min_size=1, max_size=10),
    host=st.sampled_from(["registry.example", "quiet.example"]),
)
def test_no_tenant_waits_longer_than_its_share_allows(attacks: list[Job], arrivals: list[float], host: str) -> None:
    """A job of a tenant that has no other waits as long as one round of the longest jobs, whatever the others do."""
    longest = 10.0
    honest = [Job(at, f"honest-{number}", host, 0.05) for number, at in enumerate(arrivals)]
    simulation = simulate([*honest, *attacks], at_host=8, most_each_at_host=6)
    tenants = 4 + len(honest)
    rounds = math.ceil(tenants / 8)
    for number in range(len(honest)):
        assert simulation.waits[number] <= rounds * longest
    assert simulation.most_held <= 16


def test_a_tenant_that_comes_last_waits_for_one_end_and_not_for_a_queue() -> None:
    """First come, first served would let it wait for 500 jobs of 10 s."""
    flood = [Job(0.0, "mallory", f"host-{number}.example", 10.0) for number in range(50)]
    simulation = simulate([*flood, Job(1.0, "honest", "registry.example", 0.05)])
    assert simulation.waits[50] == 0.0


def test_turns_go_round_over_tenants() -> None:
    """Of those that wait, each tenant gets one before any gets a second."""
    jobs = [Job(0.0, OPERATOR, "", 1.0)] * 2
    jobs += [Job(0.1, "a", "", 1.0)] * 4 + [Job(0.2, "b", "", 1.0)] * 2 + [Job(0.3, "c", "", 1.0)]
    simulation = simulate(jobs, total=2)
    starts: dict[str, list[int]] = {tenant: [] for tenant in "abc"}
    for number in range(2, 9):
        starts[jobs[number].tenant].append(round(simulation.waits[number] + jobs[number].arrives_at))
    assert starts == {"a": [1, 2, 3, 4], "b": [1, 3], "c": [2]}


def test_who_asks_seldom_goes_before_those_who_always_wait() -> None:
    """It waits for the end of one job, and not for a round of five tenants."""
    jobs = [Job(0.0, tenant, "", 0.1) for tenant in "abcde" for _ in range(10)]
    simulation = simulate([*jobs, *(Job(0.55 + number, "honest", "", 0.1) for number in range(4))], total=1)
    assert [round(simulation.waits[50 + number], 3) <= 0.1 for number in range(4)] == [True] * 4
    assert max(simulation.waits[number] for number in range(50)) == pytest.approx(5.3)


def test_nobody_is_passed_for_longer_than_a_second() -> None:
    """Whoever makes tenants without end, each of which asks once, passes those who have asked for a second at most."""
    jobs = [Job(0.0, "busy", "", 0.1), Job(0.05, "busy", "", 0.1)]
    jobs += [Job(0.06 + number / 20, f"tenant-{number}", "", 0.1) for number in range(100)]
    assert simulate(jobs, total=1).waits[1] <= 2.2


def test_a_slow_place_holds_up_no_other() -> None:
    """Nothing is held while a job waits for its host."""
    jobs = [Job(0.0, "a", "slow.example", 10.0)] * 8 + [Job(1.0, "a", "quick.example", 0.1)]
    simulation = simulate(jobs, at_host=2, most_each_at_host=2)
    assert simulation.waits[8] == 0.0


def test_work_that_nobody_asks_for_again_is_dropped() -> None:
    """A queue holds what is wanted, and not what was."""
    jobs = [Job(0.0, "a", "", 2 * LAPSE_SECONDS), Job(1.0, "a", "", 1.0), Job(1.0, OPERATOR, "", 1.0)]
    simulation = simulate(jobs, total=1)
    assert simulation.lost == [1]
    assert 2 in simulation.waits


async def test_whoever_joins_work_that_waits_brings_its_own_turn() -> None:
    """The tenant that asked first is at its share; the one that joins is not."""
    clock = Clock()
    turns = Turns(SPEC, clock, total=4)
    release = asyncio.Event()
    got: list[str] = []

    async def work(name: str) -> None:
        async with turns.turn():
            got.append(name)
            await release.wait()

    def start(name: str, interest: Interest) -> "asyncio.Task[None]":
        context = Context()
        context.run(set_interest, interest)
        return asyncio.get_running_loop().create_task(work(name), context=context)

    tasks = [start(f"a{number}", Interest("a", clock.now)) for number in range(2)]
    shared = Interest("a", clock.now)
    tasks.append(start("shared", shared))
    await settle()
    assert got == ["a0", "a1"]
    assert shared.is_waiting
    shared.add("b", clock.now)
    await settle()
    assert got == ["a0", "a1", "shared"]
    release.set()
    await asyncio.gather(*tasks)
    assert turns.waiting == 0


async def test_interests_that_wait_for_each_other_know_all_their_tenants() -> None:
    """Two lookups with several credentials may each wait for a request of the other."""
    one, two = Interest("a", 1.0), Interest("b", 2.0)
    one.join(two)
    two.join(one)
    two.add("c", 3.0)
    assert set(one.tenants) == set(two.tenants) == {"a", "b", "c"}
    assert one.asked_at == two.asked_at == 3.0
    assert not one.drop()


async def test_a_job_that_is_cancelled_leaves_its_place() -> None:
    """Whoever waits behind it gets the turn."""
    clock = Clock()
    turns = Turns(SPEC, clock, total=1)
    async with turns.turn():
        waiter = asyncio.create_task(turns.turn().__aenter__())
        await settle()
        assert turns.waiting == 1
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert turns.waiting == 0
    async with asyncio.timeout(1), turns.turn():
        pass


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are revoked after a hundredth of a second."""
    monkeypatch.setattr("extender.turns.REVOKE_SECONDS", 0.01)


def in_context(work: "Coroutine[None, None, str]", tenant: str) -> "asyncio.Task[str]":
    """Starts the work on behalf of a tenant."""
    context = Context()
    context.run(set_interest, Interest(tenant, time.monotonic()))
    return asyncio.get_running_loop().create_task(work, context=context)


async def hold(turns: Turns, host: str, end: asyncio.Event) -> str:
    """Holds a turn until `end`; returns what became of it."""
    try:
        async with turns.turn(host):
            await end.wait()
    except (TurnLost, TurnRevoked) as exc:
        return type(exc).__name__
    return "done"


async def test_work_that_is_dropped_leaves_nothing_to_the_garbage_collector() -> None:
    """Which may come hours later."""
    turns = Turns(SPEC, time.monotonic, total=1)
    end = asyncio.Event()
    gc.collect()
    before = sum(type(each) is Interest for each in gc.get_objects())
    gc.disable()
    try:
        async with turns.turn():
            interest = Interest("shop", time.monotonic())
            context = Context()
            context.run(set_interest, interest)
            dropped = asyncio.create_task(hold(turns, "", end), context=context)
            await settle()
            assert interest.drop()
            assert await dropped == "TurnLost"
            del interest, context, dropped
            await settle()
        assert sum(type(each) is Interest for each in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.usefixtures("soon")
async def test_a_tenant_without_a_turn_gets_one_of_those_who_came_while_they_were_fewer() -> None:
    """Hosts that hang would otherwise keep their turns for as long as a request may take."""
    turns = Turns(SPEC, time.monotonic, at_host=4, most_each_at_host=3)
    end = asyncio.Event()
    greedy = [in_context(hold(turns, "host", end), tenant) for tenant in ("a", "a", "a", "b")]
    await settle()
    newcomer = in_context(hold(turns, "host", end), "c")
    done, _ = await asyncio.wait(greedy, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == ["TurnRevoked"]
    assert done == {greedy[0]}
    await settle()
    end.set()
    assert await newcomer == "done"
    assert [await task for task in greedy[1:]] == ["done"] * 3


@pytest.mark.usefixtures("soon")
async def test_who_holds_its_share_keeps_it() -> None:
    """However long its work takes."""
    turns = Turns(SPEC, time.monotonic, at_host=2, most_each_at_host=1)
    end = asyncio.Event()
    modest = [in_context(hold(turns, "host", end), tenant) for tenant in ("a", "b")]
    await settle()
    newcomer = in_context(hold(turns, "host", end), "c")
    await asyncio.sleep(0.05)
    end.set()
    assert [await task for task in (*modest, newcomer)] == ["done"] * 3


@pytest.mark.usefixtures("soon")
async def test_work_that_waits_for_another_turn_is_lost_and_not_revoked() -> None:
    """It has asked nobody yet, so nobody is to blame."""
    outer = Turns(SPEC, time.monotonic, at_host=2, most_each_at_host=2)
    inner = Turns(SPEC, time.monotonic, at_host=1, most_each_at_host=1)
    end = asyncio.Event()

    async def hold_both() -> str:
        try:
            async with outer.turn("host"), inner.turn("mirror"):
                await end.wait()
        except (TurnLost, TurnRevoked) as exc:
            return type(exc).__name__
        return "done"

    blocker = in_context(hold(inner, "mirror", end), "z")
    await settle()
    greedy = [in_context(hold_both(), "a") for _ in range(2)]
    await settle()
    newcomer = in_context(hold(outer, "host", end), "b")
    done, _ = await asyncio.wait(greedy, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == ["TurnLost"]
    end.set()
    assert await newcomer == "done"
    assert await blocker == "done"
    await asyncio.gather(*greedy)


async def test_turns_begin_at_a_pace_and_still_go_round() -> None:
    """Work that ends quickly takes processor time all the same."""
    turns = Turns(SPEC, time.monotonic, per_second=100.0)
    ended: list[str] = []

    async def work(tenant: str) -> str:
        async with turns.turn():
            ended.append(tenant)
        return tenant

    started = time.monotonic()
    greedy = [in_context(work("a"), "a") for _ in range(50)]
    await settle()
    assert 16 <= len(ended) < 50
    first = len(ended)
    modest = in_context(work("b"), "b")
    operator = asyncio.create_task(work(OPERATOR))
    await settle()
    assert operator.done()
    await modest
    assert ended.index("b") <= first + 12  # and not after all 50
    await asyncio.gather(*greedy)
    assert time.monotonic() - started >= (51 - 16) / 100.0 - 0.01


async def test_fewer_turns_than_there_are_begin_burst() -> None:
    """A hundred that begin together hold up the event loop."""
    turns = Turns(SPEC, time.monotonic, per_second=0.01, burst=3)
    began: list[int] = []

    async def work(number: int) -> str:
        async with turns.turn():
            began.append(number)
        return ""

    tasks = [in_context(work(number), "a") for number in range(10)]
    await settle()
    assert began == [0, 1, 2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_turns_begin_more_slowly_while_the_event_loop_is_busy() -> None:
    """Requests that memory can answer come first."""
    turns = Turns(SPEC, time.monotonic, per_second=400.0)
    began = 0

    async def work() -> str:
        nonlocal began
        async with turns.turn():
            began += 1
        return ""

    tasks = [in_context(work(), "a") for _ in range(500)]
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        time.sleep(0.01)
        await asyncio.sleep(0)
    assert 16 < began < 120
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
