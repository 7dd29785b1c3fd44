"""Work that is under way, once per key, whoever waits for it or stops waiting.

Knows tasks and keys, and nothing of what the work is.
"""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Tasks by key, at most `most` at a time, and `most_each` for one payer. A task ends by itself or with `close`,
    never with those who wait.

    Wait for one with `asyncio.wait`, which leaves it alone when the waiter is cancelled; awaiting it directly would
    not. Each runs in an empty context, since it works for all who wait and not for the first alone.
    """

    def __init__(self, most: int, most_each: int | None = None) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._most = most
        self._most_each = most if most_each is None else most_each
        self._paid: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def is_under_way(self, key: K) -> bool:
        """Whether `join` would find a task."""
        return key in self._tasks

    def join(self, key: K, start: Callable[[], Coroutine[Any, Any, V]], *, tenant: str = "") -> asyncio.Task[V] | None:
        """The task under way for `key`, or a new one running `start()`; None where there is no room for another.

        `tenant` is who a new task is counted for; nobody's tasks count in the total alone.
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
        """All tasks are cancelled and have ended, and none starts any more."""
        self._most = 0
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
