"""Endpoints that have failed lately and are not asked for a while, where another endpoint may do as well.

Knows endpoints by their roots, and a circuit breaker for each that failed. A registry without mirrors has its breaker
in the resolver instead, by the host that images name.
"""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.tables import LruTable, declare_cache

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# A mirror of every registry makes endpoints of all the hosts that images name.
_BREAKERS = declare_cache(
    "registry.endpoint_breaker.breakers", key="root of the endpoint", bound=1024, invalidated_by="an answer"
)


class _Row(NamedTuple):
    breaker: CircuitBreaker
    is_throttled: bool


class EndpointBreakers:
    """The breakers of endpoints that failed, by root; an endpoint that is not here has not failed."""

    def __init__(
        self,
        *,
        probe_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        size: int = _BREAKERS.rows,
    ) -> None:
        """At most `size`. As `CircuitBreaker`: `clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rows: LruTable[str, _Row] = _BREAKERS.lru_table(size)

    def admit(self, root: str) -> Attempt:
        """An attempt at the endpoint; the caller records its outcome, or releases it.

        Raises:
            RegistryThrottled, RegistryUnavailable: the endpoint is not asked now.
        """
        row = self._rows.peek(root)
        if row is None:
            return self.force()
        attempt = row.breaker.admit()
        if attempt:
            return attempt
        if row.is_throttled:
            raise RegistryThrottled(f"{root} has asked for a pause", row.breaker.wait_seconds())
        raise RegistryUnavailable(f"{root} has failed and is not asked for a while")

    def force(self) -> Attempt:
        """An attempt that is made whatever an endpoint's breaker says."""
        return Attempt(self._clock())

    def release(self, root: str, attempt: Attempt) -> None:
        """The attempt is over. This only matters if it had no outcome."""
        row = self._rows.peek(root)
        if row:
            row.breaker.release(attempt)

    def record_success(self, root: str, attempt: Attempt) -> None:
        """The endpoint has answered."""
        row = self._rows.peek(root)
        if row and row.breaker.record_success(attempt):
            self._rows.remove(root)

    def record_failure(self, root: str, attempt: Attempt, error: RegistryThrottled | RegistryUnavailable) -> None:
        """The endpoint has failed the attempt; one that names no time when it throttles is taken to be down."""
        row = self._rows.peek(root)
        breaker = row.breaker if row else self._new_breaker()
        retry_after_seconds = error.retry_after_seconds if isinstance(error, RegistryThrottled) else None
        seconds = breaker.record_failure(attempt, retry_after_seconds)
        if seconds is None:
            return
        self._rows.put(root, _Row(breaker, isinstance(error, RegistryThrottled)))
        log.info("mirror.rested", registry=root, seconds=round(seconds, 1), why=str(error))

    def _new_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(_BACKOFF, clock=self._clock, random=self._random, probe_seconds=self._probe_seconds)
