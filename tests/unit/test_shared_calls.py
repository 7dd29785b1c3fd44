"""Shared calls: one for each key, begun in the turns of everybody who wants it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TypeVar

import pytest

from extender.budgets import declare_budget, use_of
from extender.shared_calls import SharedCalls
from extender.turns import Interest, TurnLost, Turns, set_interest
from testbed.clock import Clock

T = TypeVar("T")
SPEC = declare_budget("tests.shared_calls.calls", unit="calls", total=2, most_each=1, why="a test")


class Work:
    """What calls do: they end when `open` is set, and are noted when they begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = asyncio.Event()

    def of(self, name: str) -> Callable[[], Awaitable[str]]:
        async def work() -> str:
            self.begun.append(name)
            await self.open.wait()
            if name == "broken":
                raise ValueError(name)
            return name.upper()

        return work


@pytest.fixture
async def work() -> Work:
    """Nothing has begun."""
    return Work()


@pytest.fixture
async def calls() -> SharedCalls[str, str]:
    """Two turns, one for each tenant while another wants one."""
    return SharedCalls(Turns(SPEC, Clock()))


def run_for(tenant: str, work: Awaitable[T]) -> asyncio.Task[T]:
    """The work in a task of its own, on behalf of this tenant."""

    async def run() -> T:
        return await work

    context = Context()
    context.run(set_interest, Interest(tenant, 1000.0))
    return asyncio.get_running_loop().create_task(run(), context=context)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_want_the_same_share_a_call(calls: SharedCalls[str, str], work: Work) -> None:
    """One that is cancelled leaves it to the others."""
    callers = [run_for("a", calls.join("x", work.of("x"))) for _ in range(5)]
    await settle()
    callers[0].cancel()
    work.open.set()
    assert await asyncio.gather(*callers[1:]) == ["X"] * 4
    assert work.begun == ["x"]
    assert len(calls) == 0
    assert await calls.join("x", work.of("x")) == "X"
    assert work.begun == ["x", "x"]


async def test_a_call_fails_for_everybody(calls: SharedCalls[str, str], work: Work) -> None:
    """And is not remembered."""
    callers = [run_for("a", calls.join("broken", work.of("broken"))) for _ in range(2)]
    work.open.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [repr(outcome) for outcome in outcomes] == ["ValueError('broken')"] * 2
    assert len(calls) == 0


async def test_whoever_joins_a_call_brings_its_own_turn(calls: SharedCalls[str, str], work: Work) -> None:
    """A tenant at its share cannot hold a call back that another one wants."""
    first = run_for("greedy", calls.join("slow", work.of("slow")))
    await settle()
    queued = run_for("greedy", calls.join("shared", work.of("shared")))
    await settle()
    assert work.begun == ["slow"]
    other = run_for("other", calls.join("shared", work.of("shared")))
    await settle()
    assert work.begun == ["slow", "shared"]
    work.open.set()
    assert list(await asyncio.gather(first, queued, other)) == ["SLOW", "SHARED", "SHARED"]


async def test_a_call_that_nobody_waits_for_is_dropped_before_it_begins(
    calls: SharedCalls[str, str], work: Work
) -> None:
    """One that has begun goes on, and can be joined."""
    callers = [run_for("a", calls.join(name, work.of(name))) for name in ("begun", "queued")]
    await settle()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await settle()
    assert len(calls) == 1
    joined = run_for("a", calls.join("begun", work.of("begun")))
    await settle()
    work.open.set()
    assert await joined == "BEGUN"
    assert work.begun == ["begun"]
    assert use_of(SPEC).in_use == 0


async def test_closing_ends_calls_for_those_who_wait(calls: SharedCalls[str, str], work: Work) -> None:
    """They are told so, and are not cancelled themselves."""
    callers = [run_for("a", calls.join(name, work.of(name))) for name in ("begun", "queued")]
    await settle()
    await calls.close()
    for caller in callers:
        with pytest.raises(TurnLost):
            await caller
    assert use_of(SPEC).in_use == 0


async def test_a_dropped_call_leaves_nothing_to_the_garbage_collector(calls: SharedCalls[str, str], work: Work) -> None:
    """Callers that go away leave hundreds a second, and collections hold everybody up."""
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is Interest for each in gc.get_objects())
        waiting = [run_for("shop", calls.join(name, work.of(name))) for name in map(str, range(20))]
        await settle()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        waiting.clear()
        del task
        work.open.set()
        await settle()
        assert sum(type(each) is Interest for each in gc.get_objects()) <= before
    finally:
        gc.enable()
