"""A work queue as controllers have one: an item that is added several times is worked on once, by one worker at a time.

It means what client-go's queues mean (k8s.io/client-go/util/workqueue: Interface and DelayingInterface), with these
differences:

- Tenants take turns; items are first in, first out within a tenant.
- `get` ends an item's time to be added again, which client-go leaves running: whoever works on it says the next one.
- `discard` takes an item back, and no queue ends: workers are tasks, which are cancelled.
- Times are kept in the event loop's own heap.
"""

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from extender.turns import FairQueue

T = TypeVar("T", bound=Hashable)


class WorkQueue(Generic[T]):
    """Items to work on, each of the tenant that `tenant_of` names. No method but `get` waits."""

    def __init__(self, tenant_of: Callable[[T], str]) -> None:
        self._tenant_of = tenant_of
        self._queue: FairQueue[T] = FairQueue()
        self._dirty: set[T] = set()  # to be worked on, also those that are worked on now
        self._processing: set[T] = set()
        self._timers: dict[T, asyncio.TimerHandle] = {}

    def __contains__(self, item: T) -> bool:
        """Whether the item is queued, waits for its time, or is worked on."""
        return item in self._dirty or item in self._processing or item in self._timers

    def add(self, item: T) -> None:
        """Queues the item. If a worker has it now, it is queued once that worker is done."""
        if item not in self._dirty:
            self._dirty.add(item)
            if item not in self._processing:
                self._queue.put(self._tenant_of(item), item)

    def add_after(self, item: T, seconds: float) -> None:
        """Adds the item after so many seconds; of several times the earliest counts. `math.inf` is never."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        if seconds == math.inf or (timer and timer.when() <= loop.time() + seconds):
            return
        self._end_timer(item)
        self._timers[item] = loop.call_later(seconds, self._add_due, item)

    async def get(self) -> T:
        """Waits for an item and returns it. Its worker calls `done`, whatever happens."""
        while True:
            item = await self._queue.get()
            if item in self._dirty and item not in self._processing:  # else it was discarded since it was queued
                self._dirty.remove(item)
                self._processing.add(item)
                self._end_timer(item)
                return item

    def done(self, item: T) -> None:
        """Ends the work on the item, which is queued again if it was added meanwhile."""
        self._processing.remove(item)
        if item in self._dirty:
            self._queue.put(self._tenant_of(item), item)

    def discard(self, item: T) -> None:
        """Takes the item out of the queue and ends its time. A worker that has it goes on."""
        self._dirty.discard(item)
        self._end_timer(item)

    def _add_due(self, item: T) -> None:
        del self._timers[item]
        self.add(item)

    def _end_timer(self, item: T) -> None:
        timer = self._timers.pop(item, None)
        if timer:
            timer.cancel()
