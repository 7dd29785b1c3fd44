"""Places that have failed lately and are left alone for a while, where another place may do as well.

Knows failures and times. For a registry without mirrors the resolver does this, by images' hosts.
"""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from extender.errors import RegistryError, RegistryThrottled, RegistryUnavailable

log = structlog.get_logger()

_FIRST_SECONDS, _MOST_SECONDS = 10.0, 300.0
_REMEMBERED = 1024  # a mirror of every registry makes places of all the hosts that images name


class _Rest(NamedTuple):
    since: float
    until: float
    strikes: int
    throttled: bool


class Rests:
    """The places at rest. One that fails again after its rest gets a longer one, twice as long up to five minutes.

    After a rest one asker goes first: the others find the place at rest for `probe_seconds` more, or until it has
    answered. Rests vary by chance, so that what failed together is not asked together.
    """

    def __init__(self, *, probe_seconds: float, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rests: dict[str, _Rest] = {}

    def standing(self, place: str) -> RegistryError | None:
        """What an asker gets instead of an answer; None where it may ask, and is the one who does."""
        rest, now = self._rests.get(place), self._clock()
        if rest is None:
            return None
        if now >= rest.until:
            self._rests[place] = rest._replace(until=now + self._probe_seconds)
            return None
        if rest.throttled:
            return RegistryThrottled(f"{place} has asked for a pause", rest.until - now)
        return RegistryUnavailable(f"{place} has failed and is not asked for a while")

    def begin(self, place: str, error: RegistryThrottled | RegistryUnavailable, asked_at: float) -> None:
        """The place has failed an asker of `asked_at`, and rests from now on, unless it has begun to since."""
        before, now = self._rests.get(place), self._clock()
        if before and asked_at <= before.since:
            return
        strikes = before.strikes + 1 if before else 1
        seconds = self._seconds(error, strikes)
        self._rests.pop(place, None)
        self._rests[place] = _Rest(now, now + seconds, strikes, isinstance(error, RegistryThrottled))
        log.info("mirror.rested", registry=place, seconds=round(seconds, 1), why=str(error))
        if len(self._rests) > _REMEMBERED:
            del self._rests[next(iter(self._rests))]

    def end(self, place: str) -> None:
        """The place has answered."""
        self._rests.pop(place, None)

    def _seconds(self, error: RegistryThrottled | RegistryUnavailable, strikes: int) -> float:
        asked = error.retry_after_seconds if isinstance(error, RegistryThrottled) else None
        if asked is not None:
            return asked * (1 + 0.2 * self._random())
        return min(_FIRST_SECONDS * 2.0 ** min(strikes - 1, 10), _MOST_SECONDS) * (1 - 0.2 * self._random())
