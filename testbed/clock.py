"""A clock for tests, whose time passes only when a test says so."""

from collections.abc import Callable


class Clock:
    """Seconds that stand still until a test moves them; called, it tells the time, as `time.monotonic` does."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets so many seconds pass."""
        self.now += seconds

    def ahead(self, seconds: float) -> Callable[[], float]:
        """Another clock, always so many seconds ahead of this one: a wall clock beside a monotonic one."""
        return lambda: self.now + seconds
