"""Work that is under way, once per key, whoever waits for it or stops waiting.

Knows tasks and keys, and nothing of what the work is.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flights(Generic[K, V]):
    """Tasks by key, at most `most` at a time. A task ends by itself or with `close`, never with those who wait.

    Wait for one with `asyncio.wait`, which leaves it alone when the waiter is cancelled; awaiting it directly would
    not. Each runs in an empty context, since it works for all who wait and not for the first alone.
    """

    def __init__(self, most: int) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._tasks)

    def is_under_way(self, key: K) -> bool:
        """Whether `join` would find a task."""
        return key in self._tasks

    def join(self, key: K, fly: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V] | None:
        """The task under way for `key`, or a new one running `fly()`; None where there is no room for another."""
        task = self._tasks.get(key)
        if task or len(self._tasks) >= self._most:
            return task
        task = asyncio.get_running_loop().create_task(fly(), context=contextvars.Context())
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return task

    async def close(self) -> None:
        """All tasks are cancelled and have ended, and none starts any more."""
        self._most = 0
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
