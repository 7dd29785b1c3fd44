"""Runs one task per key at a time for any number of callers; cancelling a caller does not cancel the task."""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Tasks by key: at most `most` at a time, and at most `most_each` of them for one tenant.

    A task ends by itself or is cancelled by `close`. Wait for it with `asyncio.wait`, which does not cancel it when the
    caller is cancelled; `await` would. Each task runs in an empty context, since it works for all its callers and not
    only for the first.
    """

    def __init__(self, most: int, most_each: int | None = None) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._most = most
        self._most_each = most if most_each is None else most_each
        self._paid: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def is_under_way(self, key: K) -> bool:
        """Whether a task for `key` is in flight."""
        return key in self._tasks

    def join(self, key: K, start: Callable[[], Coroutine[Any, Any, V]], *, tenant: str = "") -> asyncio.Task[V] | None:
        """The task in flight for `key`, or a new one that runs `start()`; None if a limit allows no new task.

        A new task counts against the limit of `tenant`; with an empty `tenant` it counts only in the total.
        """
        task = self._tasks.get(key)
        if task or len(self._tasks) >= self._most or (tenant and self._paid[tenant] >= self._most_each):
            return task
        task = asyncio.get_running_loop().create_task(start(), context=contextvars.Context())
        self._tasks[key] = task
        self._paid[tenant] += 1
        task.add_done_callback(lambda _: self._end(key, tenant))
        return task

    def _end(self, key: K, tenant: str) -> None:
        del self._tasks[key]
        self._paid[tenant] -= 1
        if not self._paid[tenant]:
            del self._paid[tenant]

    async def close(self) -> None:
        """Cancels all tasks and waits until they have ended; no task can start afterwards."""
        self._most = 0
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
