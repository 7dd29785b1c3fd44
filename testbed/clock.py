"""A clock for tests, whose time passes only when a test advances it."""

from collections.abc import Callable


class Clock:
    """A clock that only `advance` moves. Calling it returns its seconds, as `time.monotonic` does."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advances the clock by so many seconds."""
        self.now += seconds

    def ahead(self, seconds: float) -> Callable[[], float]:
        """Returns another clock, always so many seconds ahead: a wall clock beside a monotonic one."""
        return lambda: self.now + seconds
