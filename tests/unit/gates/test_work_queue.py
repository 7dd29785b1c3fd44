"""The work queue, in simulated time: what is worked on, when, and by how many."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from extender.gates.work_queue import WorkQueue
from testbed.eventually import eventually
from testbed.memory_network import Network, run_in_memory

Worked = list[tuple[float, str]]


def queue_of_words() -> WorkQueue[str]:
    """The tenant of a word is its first letter."""
    return WorkQueue(lambda word: word[0])


def play(use: Callable[[WorkQueue[str]], Coroutine[Any, Any, None]], seconds: float = 0.0) -> Worked:
    """When each item was worked on, by one worker that takes so long, within a minute after `use` has ended."""
    worked: Worked = []

    async def work(queue: WorkQueue[str]) -> None:
        while True:
            item = await queue.get()
            worked.append((asyncio.get_running_loop().time(), item))
            await asyncio.sleep(seconds)
            queue.done(item)

    async def main(_: Network) -> None:
        queue = queue_of_words()
        worker = asyncio.create_task(work(queue))
        await use(queue)
        await asyncio.sleep(60)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    run_in_memory(main)
    return worked


def test_an_item_that_is_added_again_is_worked_on_once() -> None:
    async def use(queue: WorkQueue[str]) -> None:
        for word in ("a", "b", "a", "a"):
            queue.add(word)

    assert play(use) == [(0, "a"), (0, "b")]


def test_an_item_that_is_added_while_it_is_worked_on_is_worked_on_once_more_afterwards() -> None:
    async def use(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("a")

    assert play(use, seconds=5) == [(0, "a"), (5, "a")]


def test_tenants_take_turns_and_keep_their_order() -> None:
    async def use(queue: WorkQueue[str]) -> None:
        for word in ("a1", "a2", "a3", "b1", "b2"):
            queue.add(word)

    assert [word for _, word in play(use)] == ["a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(
    ("times", "worked_at"),
    [((7,), [7]), ((7, 3, 9), [3]), ((0,), [0]), ((math.inf,), []), ((math.inf, 2, math.inf), [2])],
)
def test_the_earliest_of_several_times_counts(times: tuple[float, ...], worked_at: list[float]) -> None:
    async def use(queue: WorkQueue[str]) -> None:
        for seconds in times:
            queue.add_after("a", seconds)

    assert play(use) == [(at, "a") for at in worked_at]


def test_work_on_an_item_ends_its_time() -> None:
    """And the time that its worker says counts."""

    async def use(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 10)
        queue.add("a")
        await asyncio.sleep(1)
        queue.add_after("a", 20)

    assert play(use, seconds=5) == [(0, "a"), (21, "a")]


def test_a_time_that_comes_while_the_item_is_worked_on_has_it_worked_on_again() -> None:
    async def use(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add_after("a", 1)

    assert play(use, seconds=5) == [(0, "a"), (5, "a")]


def test_a_discarded_item_is_not_worked_on_until_it_is_added_again() -> None:
    async def use(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.add_after("b", 1)
        queue.discard("a")
        queue.discard("b")
        await asyncio.sleep(2)
        queue.add("a")

    assert play(use) == [(2, "a")]


def test_an_item_that_was_discarded_and_added_again_is_not_worked_on_twice_at_once() -> None:
    """Its first place in the queue counts no more."""

    async def main(_: Network) -> None:
        queue = queue_of_words()
        queue.add("a")
        queue.discard("a")
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 1)
        queue.done("a")
        assert await queue.get() == "a"

    run_in_memory(main)


def test_an_item_is_there_from_when_it_is_added_until_it_is_done() -> None:
    async def main(_: Network) -> None:
        queue = queue_of_words()
        assert "a" not in queue
        queue.add_after("a", 1)
        assert "a" in queue
        assert await queue.get() == "a"
        assert "a" in queue
        queue.done("a")
        assert "a" not in queue

    run_in_memory(main)


def test_a_worker_that_is_cancelled_while_it_waits_takes_nothing_with_it() -> None:
    async def main(_: Network) -> None:
        queue = queue_of_words()
        waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.add("a")
        waiting[0].cancel()
        assert await waiting[1] == "a"

    run_in_memory(main)


class Chance:
    """Adds, delays and discards items at random, from outside and by the workers; knows what is to be worked on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue = queue_of_words()
        self.under_way: set[str] = set()
        self.due_at: dict[str, float] = {}

    def act(self) -> None:
        now = asyncio.get_running_loop().time()
        item = self.random.choice("abc") + self.random.choice("1234")
        seconds = self.random.choice((0.0, 0.0, 0.5, 2.0, math.inf, None))
        if seconds is None:
            self.queue.discard(item)
            self.due_at.pop(item, None)
            return
        if seconds:
            self.queue.add_after(item, seconds)
        else:
            self.queue.add(item)
        self.due_at[item] = min(self.due_at.get(item, math.inf), now + seconds)

    async def work(self) -> None:
        while True:
            item = await self.queue.get()
            assert item not in self.under_way
            assert self.due_at.pop(item) <= asyncio.get_running_loop().time()
            self.under_way.add(item)
            for _ in range(self.random.randrange(3)):
                await self.pause(0.0, 0.1, 1.0)
                self.act()
            self.under_way.discard(item)
            self.queue.done(item)

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.random.choice(seconds))

    def is_quiet(self) -> bool:
        return not self.under_way and all(at == math.inf for at in self.due_at.values())


@pytest.mark.parametrize("seed", range(20))
def test_no_item_is_worked_on_twice_at_once_and_none_is_forgotten(seed: int) -> None:
    async def main(_: Network) -> None:
        chance = Chance(seed)
        workers = [asyncio.create_task(chance.work()) for _ in range(3)]
        for _step in range(300):
            chance.act()
            await chance.pause(0.0, 0.0, 0.3)
        await eventually(chance.is_quiet)
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError] * len(workers)

    run_in_memory(main, seed=seed)
