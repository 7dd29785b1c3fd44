"""The circuit breakers of the store, and the metric and log events of its failures."""

import enum
from collections.abc import Callable

import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker, State
from extender.metrics import counter
from extender.store.rows import StoreError

log = structlog.get_logger()

ERRORS = counter(
    "multiarch_store_errors_total",
    "Times the store of known images failed, by reason. It is then left alone for a while; answers do not fail.",
    "reason",
    ("corrupt", "locked", "schema", "timeout", "unavailable", "unwritable"),
)

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)
_PROBE_SECONDS = 1.0


class StoreOperation(enum.Enum):
    """What is done with the store."""

    READING = "reading"
    WRITING = "writing"


class StoreBreakers:
    """The store's breakers: one for reading and one for writing, since a store that is full may still be read.

    The first failure opens a breaker, for 1 s doubling to 60 s.
    """

    def __init__(self, location: str, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """As `CircuitBreaker`: `clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._location = location
        self._clock = clock
        self._breakers = {
            operation: CircuitBreaker(_BACKOFF, clock=clock, random=random, probe_seconds=_PROBE_SECONDS)
            for operation in StoreOperation
        }

    def wait_seconds(self, operation: StoreOperation) -> float:
        """How long the operation is refused from now on; 0.0 if it is not."""
        return self._breakers[operation].wait_seconds()

    def admit(self, operation: StoreOperation) -> Attempt | None:
        """An attempt, None if the breaker refuses one now. The caller records the outcome or releases the attempt."""
        return self._breakers[operation].admit()

    def force(self) -> Attempt:
        """An attempt without asking the breaker."""
        return Attempt(self._clock())

    def release(self, operation: StoreOperation, attempt: Attempt) -> None:
        """Ends an attempt. This has an effect only if no outcome was recorded."""
        self._breakers[operation].release(attempt)

    def record_success(self, operation: StoreOperation, attempt: Attempt) -> None:
        """Records a success; logs an event when that closes the last open breaker."""
        if self._breakers[operation].record_success(attempt) and self._are_closed():
            log.info("store.recovered", store=self._location)

    def record_failure(self, operation: StoreOperation, attempt: Attempt, error: StoreError) -> None:
        """Records and counts a failure; logs an event when that opens the first breaker."""
        ERRORS[error.reason].inc()
        if self._are_closed():
            log.warning(
                "store.failed",
                store=self._location,
                doing=operation.value,
                reason=error.reason,
                detail=str(error),
            )
        self._breakers[operation].record_failure(attempt)

    def _are_closed(self) -> bool:
        return all(breaker.state() is State.CLOSED for breaker in self._breakers.values())
