"""Whether the store is well, and when to try it again if it is not.

Knows time and failures, and nothing of what a store does.
"""

import enum
from collections.abc import Callable

import structlog

from extender.metrics import counter
from extender.store.rows import StoreError

log = structlog.get_logger()

ERRORS = counter(
    "multiarch_store_errors_total",
    "Times the store of known images failed, by reason. It is then left alone for a while; answers do not fail.",
    "reason",
    ("corrupt", "locked", "schema", "timeout", "unavailable", "unwritable"),
)


class Doing(enum.Enum):
    """What was attempted."""

    READING = "reading"
    WRITING = "writing"


_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 60.0


class Health:
    """The store's breakers: one for reading and one for writing, since a store that is full may still be read.

    A failure opens one, for 1 s doubling to 60 s; then one attempt at a time goes through.
    """

    def __init__(self, location: str, clock: Callable[[], float]) -> None:
        self._location = location
        self._clock = clock
        self._failures = dict.fromkeys(Doing, 0)
        self._until = dict.fromkeys(Doing, 0.0)

    def rest_seconds(self, doing: Doing) -> float:
        """How long that is still to be left alone."""
        return max(0.0, self._until[doing] - self._clock()) if self._failures[doing] else 0.0

    def admit(self, doing: Doing) -> bool:
        """Whether an attempt may be made now. If it probes a sick store, no other may be for a while."""
        if self.rest_seconds(doing):
            return False
        if self._failures[doing]:
            self._rest(doing)
        return True

    def succeeded(self, doing: Doing) -> None:
        """An attempt went well."""
        was_sick, self._failures[doing] = any(self._failures.values()), 0
        if was_sick and not any(self._failures.values()):
            log.info("store.recovered", store=self._location)

    def failed(self, doing: Doing, error: StoreError) -> None:
        """An attempt did not. Said once, until all goes well again; counted every time."""
        ERRORS[error.reason].inc()
        if not any(self._failures.values()):
            log.warning("store.failed", store=self._location, doing=doing.value, reason=error.reason, detail=str(error))
        self._failures[doing] += 1
        self._rest(doing)

    def _rest(self, doing: Doing) -> None:
        seconds = _BACKOFF_SECONDS * 2.0 ** min(self._failures[doing] - 1, 10)
        self._until[doing] = self._clock() + min(seconds, _MAX_BACKOFF_SECONDS)
