"""Circuit breakers: until when a party that has failed is not tried again, and the backoff that decides that.

Counts failures in a row and keeps times. Does no I/O, starts no task and writes no log; the clock and the random
numbers are arguments.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

_MAX_DOUBLINGS = 64  # exceeds every `max_seconds` in use; an unbounded power would overflow eventually
_SHORTER, _LONGER = 0.2, 0.1

FORGOTTEN_SECONDS = 600.0
"""A failure that comes so long after another has ceased to hold is a first one again: nobody had tried meanwhile."""


class Backoff(NamedTuple):
    """How long to wait after failures in a row: `first_seconds`, doubling up to `max_seconds`."""

    first_seconds: float
    max_seconds: float

    def seconds(self, failures: int, random: Callable[[], float], retry_after_seconds: float | None = None) -> float:
        """The wait after the `failures`-th failure, counted from 1; `random` gives numbers from 0 up to 1.

        Random jitter makes the wait up to a fifth shorter, so that parties that failed together are not retried
        together. If the other party stated a time (`retry_after_seconds`), the wait is that time or up to a tenth
        longer.
        """
        if retry_after_seconds is not None:
            return retry_after_seconds * (1 + _LONGER * random())
        seconds = self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(seconds, self.max_seconds) * (1 - _SHORTER * random())


class CircuitBreaker:
    """Is open for a while after a failure, for longer after each that follows without a success.

    A failure while it is open is one with the failure that opened it, unless the other party states a later time.
    `failures` in a row have opened it; 0 when it is closed.
    """

    __slots__ = ("_backoff", "_clock", "_open_until", "_random", "failures")

    def __init__(self, backoff: Backoff, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._backoff = backoff
        self._clock = clock
        self._random = random
        self._open_until = -math.inf
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the party is not to be tried: what succeeds or fails now began before it opened."""
        return self._clock() < self._open_until

    def wait_seconds(self) -> float:
        """For how long it is open from now on; 0.0 if it is not."""
        return max(0.0, self._open_until - self._clock())

    def record_success(self) -> None:
        """Closes the breaker."""
        self.failures, self._open_until = 0, -math.inf

    def record_failure(self, retry_after_seconds: float | None = None) -> float | None:
        """Opens the breaker. Returns for how many seconds from now, or None if the failure changes nothing.

        `retry_after_seconds` is the time that the other party stated. The breaker stays open at least that long.
        """
        now, is_next = self._clock(), not self.is_open
        if not is_next and retry_after_seconds is None:
            return None
        failures = is_next + (self.failures if now - self._open_until < FORGOTTEN_SECONDS else 0)
        open_until = now + self._backoff.seconds(failures, self._random, retry_after_seconds)
        if open_until <= self._open_until:
            return None
        self.failures, self._open_until = failures, open_until
        return open_until - now
