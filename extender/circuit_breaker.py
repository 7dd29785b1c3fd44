"""Circuit breakers: whether another party that has failed may be asked again, and for how long it is not.

Knows failures in a row and times. Does no I/O, starts no task, writes no log; clock and random arrive as arguments.
"""

import enum
import math
from collections.abc import Callable
from typing import NamedTuple

_MAX_DOUBLINGS = 64  # beyond any maximum in use; a power without bound would overflow one day
_SHORTER, _LONGER = 0.2, 0.1


class State(enum.Enum):
    """A breaker's state. `PROBING`: the time of `OPEN` is over, and one attempt at a time is admitted."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Backoff(NamedTuple):
    """How long to wait after failures in a row: `first_seconds`, doubling up to `max_seconds`."""

    first_seconds: float
    max_seconds: float

    def seconds(self, failures: int, random: Callable[[], float], retry_after_seconds: float | None = None) -> float:
        """The wait after the `failures`-th failure, counted from 1; `random` gives numbers from 0 up to 1.

        Chance makes it up to a fifth shorter, so that what failed together is not tried again together. Where the
        other party has named a time (`retry_after_seconds`), the wait is that time and up to a tenth longer.
        """
        if retry_after_seconds is not None:
            return retry_after_seconds * (1 + _LONGER * random())
        seconds = self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(seconds, self.max_seconds) * (1 - _SHORTER * random())


class Attempt(NamedTuple):
    """One use of what the breaker protects; its outcome is recorded with it."""

    began_at: float


class CircuitBreaker:
    """Refuses attempts for a while after a failure, then admits one at a time until one succeeds.

    Closed: every attempt is admitted; a failure opens. Open: none is, until the backoff's time is over. Probing: one
    attempt is admitted, the probe; its success closes the breaker, its failure opens it for longer.

    Attempts that began before the breaker opened say nothing new: their success does not close it, and their failure
    does not lengthen its time unless the other party names a later one.
    """

    def __init__(
        self,
        backoff: Backoff,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        probe_seconds: float = math.inf,
    ) -> None:
        """`clock` gives monotonic seconds. A probe without an outcome gives way to another after `probe_seconds`."""
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
        """How many failures in a row have opened the breaker; 0 when it is closed."""
        return self._failures

    def state(self) -> State:
        """The state now."""
        if not self._failures:
            return State.CLOSED
        return State.OPEN if self._clock() < self._open_until else State.PROBING

    def wait_seconds(self) -> float:
        """How long attempts are refused from now on, at most; 0.0 if one is admitted now."""
        if not self._failures:
            return 0.0
        probed_until = self._probe.began_at + self._probe_seconds if self._probe else -math.inf
        return max(0.0, max(self._open_until, probed_until) - self._clock())

    def admit(self) -> Attempt | None:
        """An attempt that may be made now, None if it may not.

        The caller records its outcome, or releases it if it has none.
        """
        if self.wait_seconds():
            return None
        attempt = Attempt(self._clock())
        if self._failures:
            self._probe = attempt
        return attempt

    def release(self, attempt: Attempt) -> None:
        """Another probe may begin, if the attempt was the probe. Once its outcome is recorded this changes nothing."""
        if attempt is self._probe:
            self._probe = None

    def record_success(self, attempt: Attempt) -> bool:
        """Closes the breaker, unless the attempt began before it opened. Whether that changed its state."""
        self.release(attempt)
        if not self._failures or attempt.began_at <= self._opened_at:
            return False
        self._failures, self._probe = 0, None
        self._opened_at = self._open_until = -math.inf
        return True

    def record_failure(self, attempt: Attempt, retry_after_seconds: float | None = None) -> float | None:
        """Opens the breaker. For how many seconds from now, None if the failure says nothing new.

        `retry_after_seconds` is the time that the other party has named: it is kept, and nothing shortens it.
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
