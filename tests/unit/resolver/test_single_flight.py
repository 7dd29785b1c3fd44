"""Work under way, once per key."""

import asyncio

import pytest

from extender.budgets import Budget, declare_budget
from extender.resolver.single_flight import SingleFlight
from extender.turns import TurnLost, Turns
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import CALLER


def calls_within(total: int, *, most_each: int | None = None) -> SingleFlight[str, str]:
    """Flights with a budget of their own."""
    name = f"tests.single_flight.{total}.{most_each}"
    spec = declare_budget(name, unit="flights", total=total, most_each=most_each or total, why="a test")
    return SingleFlight(Budget(spec), Clock())


async def wait_for(event: asyncio.Event) -> str:
    await event.wait()
    return CALLER.get()


async def test_those_who_ask_for_the_same_key_share_a_flight() -> None:
    """One task, whoever joins it; another key has its own, and a key that has landed starts anew."""
    calls: SingleFlight[str, str] = calls_within(10)
    event = asyncio.Event()
    one = calls.join("key", lambda: wait_for(event))
    assert one is not None
    assert calls.join("key", lambda: wait_for(event)) is one
    other = calls.join("other", lambda: wait_for(event))
    assert other is not None
    assert other is not one
    event.set()
    await asyncio.wait([one, other])
    await asyncio.sleep(0)
    assert not calls.is_under_way("key")
    again = calls.join("key", lambda: wait_for(event))
    assert again is not None
    assert again is not one
    await again


async def test_a_waiter_that_is_cancelled_leaves_the_flight_alone() -> None:
    """Deadlines and disconnects belong to requests, not to lookups."""
    calls: SingleFlight[str, str] = calls_within(10)
    event = asyncio.Event()
    call = calls.join("key", lambda: wait_for(event))
    assert call is not None
    waiter = asyncio.create_task(asyncio.wait([call]))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    event.set()
    assert await call == "nobody"


async def test_a_flight_does_not_run_in_its_first_caller_s_context() -> None:
    """Trace ids and the like of one request must not show up in work done for others."""
    CALLER.set("somebody")
    calls: SingleFlight[str, str] = calls_within(10)
    event = asyncio.Event()
    event.set()
    call = calls.join("key", lambda: wait_for(event))
    assert call is not None
    assert await call == "nobody"


async def test_there_are_no_more_flights_than_allowed() -> None:
    """One too many is refused, can be joined if it is there already, and finds room when another has landed."""
    calls: SingleFlight[str, str] = calls_within(1)
    event = asyncio.Event()
    one = calls.join("one", lambda: wait_for(event))
    assert one is not None
    assert calls.join("two", lambda: wait_for(event)) is None
    assert calls.join("one", lambda: wait_for(event)) is one
    assert len(calls) == 1
    event.set()
    await one
    await asyncio.sleep(0)
    two = calls.join("two", lambda: wait_for(event))
    assert two is not None
    await two


async def test_closing_ends_all_flights_and_starts_none() -> None:
    """They have ended, not merely been told to, when it returns."""
    calls: SingleFlight[str, str] = calls_within(10)
    tasks = [calls.join(key, lambda: wait_for(asyncio.Event())) for key in ("one", "two")]
    await calls.close()
    assert all(task and task.cancelled() for task in tasks)
    assert calls.join("three", lambda: wait_for(asyncio.Event())) is None


async def test_a_payer_has_room_for_so_many_flights() -> None:
    """Beyond that only others' start, until one of the payer's has landed; joining one under way is free."""
    calls: SingleFlight[str, str] = calls_within(10, most_each=2)
    event = asyncio.Event()
    mine = [calls.join(key, lambda: wait_for(event), tenant="me") for key in "abc"]
    assert mine[2] is None
    assert calls.join("a", lambda: wait_for(event), tenant="me") is mine[0]
    others = [calls.join(key, lambda: wait_for(event)) for key in "def"]
    assert None not in others
    event.set()
    await asyncio.wait([call for call in (*mine, *others) if call])
    await asyncio.sleep(0)
    again = calls.join("c", lambda: wait_for(event), tenant="me")
    assert again is not None
    await again


async def test_a_newcomer_takes_the_place_of_what_the_largest_holder_queued_last() -> None:
    """Tenants that came first may fill the budget, but not keep the others out with work that has not begun."""
    spec = declare_budget("tests.single_flight.room", unit="flights", total=6, most_each=6, why="a test")
    turns = Turns(
        declare_budget("tests.single_flight.turns", unit="turns", total=2, most_each=2, why="a test"), Clock()
    )
    calls: SingleFlight[str, str] = SingleFlight(Budget(spec), Clock())
    event = asyncio.Event()

    async def take_a_turn() -> str:
        try:
            async with turns.turn():
                await event.wait()
        except TurnLost:
            return "lost"
        return "done"

    greedy = {key: calls.join(key, take_a_turn, tenant="greedy") for key in "abcdef"}
    assert None not in greedy.values()
    await asyncio.sleep(0)
    shared = calls.join("f", take_a_turn, tenant="other")
    assert shared is greedy["f"]
    mine = calls.join("mine", take_a_turn, tenant="newcomer")
    assert mine is not None
    assert len(calls) == 6
    lost = greedy["e"]
    assert lost is not None
    assert await lost == "lost"
    assert not calls.is_under_way("e")
    event.set()
    assert [await call for key, call in greedy.items() if call and key != "e"] == ["done"] * 5
    assert await mine == "done"
