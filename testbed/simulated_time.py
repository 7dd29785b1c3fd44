"""Runs coroutines in simulated time: whenever all of them wait, the event loop's clock jumps to the next timer.

Sockets work where both of their ends are in this process, and so do threads of an executor, during whose work the clock
stands still. So a busy machine makes nothing late. Other processes take real time, of which the clock knows nothing.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
_EVENTS = list[tuple[selectors.SelectorKey, int]]
_OWN_FILES = 1  # of a loop: the socket that wakes it up
_KERNEL_SECONDS = 0.002  # in which what one end of a connection has written is there for the other


class _JumpingSelector(selectors.DefaultSelector):
    """Puts the clock forward where nothing is to be read or written, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> _EVENTS:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if self.in_threads:
            return super().select()
        if len(self.get_map()) > _OWN_FILES:
            found = super().select(_KERNEL_SECONDS)
        elif timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        if not found:
            self.now += timeout or 0.0
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes without anybody waiting for it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self.timers = 0
        """How many timers have been set."""
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Counts the timer."""
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        """Stops the clock until the work is done."""
        self._jumping.in_threads += 1
        work = super().run_in_executor(executor, func, *args)
        work.add_done_callback(self._leave_thread)
        return work

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002  # since 3.12
        """Waits for its threads, in real time."""
        self._jumping.in_threads += 1
        await super().shutdown_default_executor()

    def _leave_thread(self, _work: object) -> None:
        self._jumping.in_threads -= 1


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the coroutine, however long it takes by its own clock, that of the running loop."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
