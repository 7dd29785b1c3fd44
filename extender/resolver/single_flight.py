"""Runs one task per key at a time for any number of callers; cancelling a caller does not cancel the task."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from extender.budgets import OPERATOR, Budget
from extender.turns import Interest, set_interest

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _RunningCall(NamedTuple):
    task: "asyncio.Task[Any]"
    interest: Interest


class SingleFlight(Generic[K, V]):
    """Tasks by key, of which each tenant may start as many as its share of `budget` allows.

    A task ends by itself or is cancelled by `close`. Wait for it with `asyncio.wait`, which does not cancel it when the
    caller is cancelled; `await` would. Each task runs in a context that holds nothing but the interest of its callers,
    since it works for all of them and not only for the first.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds: that of the turns for which the tasks wait."""
        self._budget = budget
        self._clock = clock
        self._calls: dict[K, _RunningCall] = {}
        self._started_by: dict[str, dict[K, None]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._calls)

    def is_under_way(self, key: K) -> bool:
        """Whether a task for `key` is in flight."""
        return key in self._calls

    def join(
        self, key: K, start: Callable[[], Coroutine[Any, Any, V]], *, tenant: str = OPERATOR
    ) -> asyncio.Task[V] | None:
        """The task in flight for `key`, or a new one that runs `start()`; None if the budget allows no new task.

        A new task counts against the share of `tenant`. If the budget is spent, a tenant below its share takes the
        place of the task that the largest holder started last, of those that wait for a turn and that only it wants.
        """
        call = self._calls.get(key)
        if call:
            call.interest.add(tenant, self._clock())
            return call.task
        if not self._budget.admits(tenant):
            self._make_room(tenant)
        if self._is_closed or not self._budget.take(tenant):
            return None
        interest = Interest(tenant, self._clock())
        context = contextvars.Context()
        context.run(set_interest, interest)
        task = asyncio.get_running_loop().create_task(start(), context=context)
        self._calls[key] = _RunningCall(task, interest)
        self._started_by.setdefault(tenant, {})[key] = None
        task.add_done_callback(lambda _: self._end(key, task, tenant))
        return task

    def _make_room(self, tenant: str) -> None:
        largest = self._budget.largest_holder()
        if self._budget.held_by(tenant) + 1 >= self._budget.held_by(largest):
            return
        for key in reversed(self._started_by.get(largest, {})):
            call = self._calls[key]
            if len(call.interest.tenants) == 1 and call.interest.drop():
                self._end(key, call.task, largest)
                return

    def _end(self, key: K, task: "asyncio.Task[V]", tenant: str) -> None:
        call = self._calls.get(key)
        if call is None or call.task is not task:
            return  # it has lost its place to another one
        del self._calls[key]
        started = self._started_by[tenant]
        del started[key]
        if not started:
            del self._started_by[tenant]
        self._budget.give_back(tenant)

    async def close(self) -> None:
        """Cancels all tasks and waits until they have ended; no task can start afterwards."""
        self._is_closed = True
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
