"""The circuit breakers of endpoints, for registries that have more than one endpoint.

Keeps a breaker for each endpoint that failed, by its root. The resolver has the breaker of a registry without mirrors,
by the host that images name.
"""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.tables import LruTable, declare_cache

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# With a mirror for all registries, every host that images name is an endpoint.
_BREAKERS = declare_cache(
    "registry.endpoint_breaker.breakers", key="root of the endpoint", bound=1024, invalidated_by="an answer"
)


class _Row(NamedTuple):
    breaker: CircuitBreaker
    is_throttled: bool


class EndpointBreakers:
    """The breakers of endpoints that failed, by root. Every other endpoint counts as one that has not failed."""

    def __init__(
        self,
        *,
        probe_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        size: int = _BREAKERS.rows,
    ) -> None:
        """Keeps at most `size` breakers. `clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rows: LruTable[str, _Row] = _BREAKERS.lru_table(size)

    def admit(self, root: str) -> Attempt:
        """Returns an attempt at the endpoint. The caller records its outcome or releases it.

        Raises:
            RegistryThrottled, RegistryUnavailable: the endpoint's breaker refuses the attempt.
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
        """Returns an attempt that is made in any state of the endpoint's breaker."""
        return Attempt(self._clock())

    def release(self, root: str, attempt: Attempt) -> None:
        """Ends the attempt. Has an effect only if no outcome was recorded."""
        row = self._rows.peek(root)
        if row:
            row.breaker.release(attempt)

    def record_success(self, root: str, attempt: Attempt) -> None:
        """Records that the endpoint has answered."""
        row = self._rows.peek(root)
        if row and row.breaker.record_success(attempt):
            self._rows.remove(root)

    def record_failure(self, root: str, attempt: Attempt, error: RegistryThrottled | RegistryUnavailable) -> None:
        """Records that the endpoint has failed the attempt. A 429 that names no time counts like any other failure."""
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
