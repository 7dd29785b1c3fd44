"""Work under way, once per key."""

import asyncio

import pytest

from extender.resolver.single_flight import SingleFlight
from tests.unit.resolver.fake_registry import CALLER


async def wait_for(event: asyncio.Event) -> str:
    await event.wait()
    return CALLER.get()


async def test_those_who_ask_for_the_same_key_share_a_flight() -> None:
    """One task, whoever joins it; another key has its own, and a key that has landed starts anew."""
    calls: SingleFlight[str, str] = SingleFlight(10)
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
    calls: SingleFlight[str, str] = SingleFlight(10)
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
    calls: SingleFlight[str, str] = SingleFlight(10)
    event = asyncio.Event()
    event.set()
    call = calls.join("key", lambda: wait_for(event))
    assert call is not None
    assert await call == "nobody"


async def test_there_are_no_more_flights_than_allowed() -> None:
    """One too many is refused, can be joined if it is there already, and finds room when another has landed."""
    calls: SingleFlight[str, str] = SingleFlight(1)
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
    calls: SingleFlight[str, str] = SingleFlight(10)
    tasks = [calls.join(key, lambda: wait_for(asyncio.Event())) for key in ("one", "two")]
    await calls.close()
    assert all(task and task.cancelled() for task in tasks)
    assert calls.join("three", lambda: wait_for(asyncio.Event())) is None


async def test_a_payer_has_room_for_so_many_flights() -> None:
    """Beyond that only others' start, until one of the payer's has landed; joining one under way is free."""
    calls: SingleFlight[str, str] = SingleFlight(10, 2)
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
