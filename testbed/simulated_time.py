"""Runs coroutines in simulated time: whenever all of them wait, the event loop's clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_EVENTS = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.SelectSelector):
    """Waits for no file; `now` is the time that it should have waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> _EVENTS:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        self.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes without anybody waiting for it. It is of no use for sockets and threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the coroutine, however long it takes by its own clock, that of the running loop."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
