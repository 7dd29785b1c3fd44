"""In which order items of several tenants are served."""

import asyncio

from extender.turns import FairQueue


async def test_tenants_take_turns_and_each_keeps_its_order() -> None:
    """One with many items delays another's only item by one."""
    queue = FairQueue[str]()
    for number in range(4):
        queue.put("loud", f"loud-{number}")
    queue.put("quiet", "quiet-0")
    assert len(queue) == 5
    assert [await queue.get() for _ in range(5)] == ["loud-0", "quiet-0", "loud-1", "loud-2", "loud-3"]
    assert len(queue) == 0


async def test_waiting_worker_gets_what_comes() -> None:
    """A worker that was cancelled while it waited takes nothing with it."""
    queue = FairQueue[int]()
    cancelled, waiting = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    queue.put("a", 1)
    assert await asyncio.wait_for(waiting, 5) == 1
