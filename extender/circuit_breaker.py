"""Circuit breakers: whether a party that has failed may be tried again, and the backoff until it may.

Counts failures in a row and keeps times. Does no I/O, starts no task and writes no log; the clock and the random
numbers are arguments.
"""

import enum
import math
from collections.abc import Callable
from typing import NamedTuple

_MAX_DOUBLINGS = 64  # exceeds every `max_seconds` in use; an unbounded power would overflow eventually
_SHORTER, _LONGER = 0.2, 0.1


class State(enum.Enum):
    """A breaker's state. `PROBING`: the time of `OPEN` has passed and one attempt at a time is admitted."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


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


class Attempt(NamedTuple):
    """One use of what the breaker protects. The caller passes it back when it records the outcome."""

    began_at: float


class CircuitBreaker:
    """Refuses attempts for a while after a failure, then admits one at a time until one succeeds.

    Closed: every attempt is admitted, and a failure opens the breaker. Open: no attempt is admitted until the backoff
    has passed. Probing: one attempt, the probe, is admitted; its success closes the breaker and its failure opens it
    for longer.

    The outcome of an attempt that began before the breaker opened is not news. Its success does not close the breaker.
    Its failure does not extend the open time unless the other party states a later one.
    """

    def __init__(
        self,
        backoff: Backoff,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        probe_seconds: float = math.inf,
    ) -> None:
        """`clock` gives monotonic seconds. After `probe_seconds` without an outcome another probe is admitted."""
        self._backoff = backoff
        self._clock = clock
        self._random = random
        self._probe_seconds = probe_seconds
        self._failures = 0
        self._opened_at = -math.inf
        self._open_until = -math.inf
        self._probe: Attempt | None = None

    @property
    def failures(self) -> int:
        """The number of failures in a row that have opened the breaker; 0 when it is closed."""
        return self._failures

    def state(self) -> State:
        """The current state."""
        if not self._failures:
            return State.CLOSED
        return State.OPEN if self._clock() < self._open_until else State.PROBING

    def wait_seconds(self) -> float:
        """The longest time from now for which attempts are refused; 0.0 if one is admitted now."""
        if not self._failures:
            return 0.0
        probed_until = self._probe.began_at + self._probe_seconds if self._probe else -math.inf
        return max(0.0, max(self._open_until, probed_until) - self._clock())

    def admit(self) -> Attempt | None:
        """An attempt that the caller may make now; None if attempts are refused.

        The caller records its outcome, or releases the attempt if it has no outcome.
        """
        if self.wait_seconds():
            return None
        attempt = Attempt(self._clock())
        if self._failures:
            self._probe = attempt
        return attempt

    def release(self, attempt: Attempt) -> None:
        """Admits another probe if `attempt` is the probe. Does nothing once the attempt's outcome is recorded."""
        if attempt is self._probe:
            self._probe = None

    def record_success(self, attempt: Attempt) -> bool:
        """Closes the breaker unless the attempt began before it opened. Returns whether the state changed."""
        self.release(attempt)
        if not self._failures or attempt.began_at <= self._opened_at:
            return False
        self._failures, self._probe = 0, None
        self._opened_at = self._open_until = -math.inf
        return True

    def record_failure(self, attempt: Attempt, retry_after_seconds: float | None = None) -> float | None:
        """Opens the breaker. Returns for how many seconds from now, or None if the failure changes nothing.

        `retry_after_seconds` is the time that the other party stated. The breaker stays open at least that long.
        """
        self.release(attempt)
        now, is_next = self._clock(), not self._failures or attempt.began_at > self._opened_at
        if not is_next and retry_after_seconds is None:
            return None
        failures = self._failures + is_next
        open_until = now + self._backoff.seconds(failures, self._random, retry_after_seconds)
        if not is_next and open_until <= self._open_until:
            return None
        self._failures, self._opened_at = failures, now
        self._open_until = max(self._open_until, open_until)
        return self._open_until - now
