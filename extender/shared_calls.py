"""Calls that all who want the same one at the same time share, and that begin in the turns of those who want them."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from extender.turns import Interest, TurnLost, Turns, current_interest, set_interest

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _SharedCall(Generic[V]):
    """A call, who wants it, and how many wait for it."""

    __slots__ = ("has_begun", "interest", "task", "waiters")

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self.waiters = 0
        self.has_begun = False
        self.task: asyncio.Task[V]


class SharedCalls(Generic[K, V]):
    """Calls by key, at most one for each key at a time.

    A call works for the tenants of all who wait for it. If the last of them is cancelled before the call has begun, the
    call is dropped. A call that has begun goes on, and whoever wants the same joins it.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._calls: dict[K, _SharedCall[V]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def join(self, key: K, start: Callable[[], Awaitable[V]], *, host: str = "") -> V:
        """Returns the result of the call in flight for `key`, or of a new one, which calls `start` in its turn.

        `host` is that of `Turns.turn`.

        Raises:
            TurnLost: the call was dropped from the queue, or `close` has ended it.
            Exception: whatever the call raises, for everybody who waits for it.
        """
        call = self._calls.get(key) or self._new_call(key, start, host)
        call.interest.join(current_interest())
        call.waiters += 1
        try:
            await asyncio.wait([call.task])
        finally:
            call.waiters -= 1
            if not call.waiters and not call.has_begun:
                self._end(key, call)
                call.task.cancel()
        if call.task.cancelled():
            raise TurnLost("it was ended")
        return call.task.result()

    async def close(self) -> None:
        """Cancels all calls, and waits until they have ended."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new_call(self, key: K, start: Callable[[], Awaitable[V]], host: str) -> _SharedCall[V]:
        first = current_interest()
        call = self._calls[key] = _SharedCall[V](Interest(first.first, first.asked_at))
        context = contextvars.Context()  # nothing of the first caller's: the call works for all
        context.run(set_interest, call.interest)
        call.task = asyncio.get_running_loop().create_task(self._run(call, start, host), context=context)
        call.task.add_done_callback(lambda _: self._end(key, call))
        return call

    async def _run(self, call: _SharedCall[V], start: Callable[[], Awaitable[V]], host: str) -> V:
        try:
            async with self._turns.turn(host):
                call.has_begun = True
                return await start()
        finally:
            del (
                call
            )  # its task keeps an error, whose frames include this one: the garbage collector would find the circle

    def _end(self, key: K, call: _SharedCall[V]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if call.task.done() and not call.task.cancelled():
            call.task.exception()  # which is no news if nobody waits any more
