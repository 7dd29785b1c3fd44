"""Registry hosts: a circuit breaker for each, and a limit on the lookups at each at the same time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from extender.circuit_breaker import Attempt, CircuitBreaker, State
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Failure
from extender.resolver.failures import BACKOFF, UNAVAILABLE, failure_of, retry_after_seconds
from extender.tables import LruTable, declare_cache

log = structlog.get_logger()

# Errors that show that the host answers.
_ANSWERS = (ManifestNotFound, RegistryDenied, RegistryRefusedImage, InvalidManifest, UnsupportedManifest)
# Lookups in flight at one host; others wait. Twice the client's default concurrency keeps the client busy, and a host
# that stalls holds up no more lookups than these.
_LOOKUPS_AT_ONCE = 16


class BreakerOpen(RegistryError):
    """The host's breaker refuses lookups, and no request was sent; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class RegistryHost:
    """One registry host: its limit on lookups, and its circuit breaker.

    The breaker opens when the host throttles, or when two different images in a row were unavailable: a single image
    may be unavailable for a reason of its own. Any answer to a probe closes the breaker.
    """

    def __init__(self, name: str, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._name = name
        self._turns = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._breaker = CircuitBreaker(BACKOFF, clock=clock, random=random)
        self._failure = UNAVAILABLE  # the last that opened the breaker
        self._failed_image = ""  # the image that was last unavailable; empty after an answer

    def failure(self) -> Failure | None:
        """Why the breaker refuses lookups now; None if it admits them."""
        return self._failure if self._breaker.wait_seconds() else None

    @contextlib.asynccontextmanager
    async def visit(self, image: str) -> AsyncIterator[None]:
        """Admits one lookup when the limit allows it, and records the body's outcome in the breaker.

        Raises:
            BreakerOpen: the breaker refuses lookups now.
        """
        async with self._turns:
            attempt = self._breaker.admit()
            if attempt is None:
                raise BreakerOpen(self._failure)
            try:
                yield
            except (RegistryThrottled, RegistryUnavailable) as error:
                if error.host_is_well:
                    self._record_answer(attempt)
                else:
                    self._record_failure(attempt, image, error)
                raise
            except _ANSWERS:
                self._record_answer(attempt)
                raise
            else:
                self._record_answer(attempt)
            finally:
                self._breaker.release(attempt)

    def _record_answer(self, attempt: Attempt) -> None:
        self._failed_image = ""
        if self._breaker.record_success(attempt):
            log.info("breaker.closed", registry=self._name)

    def _record_failure(self, attempt: Attempt, image: str, error: RegistryError) -> None:
        wait_seconds = retry_after_seconds(error)
        if wait_seconds is None and self._is_first_to_fail(image):
            self._failed_image = image
            return
        open_seconds = self._breaker.record_failure(attempt, wait_seconds)
        if open_seconds is None:
            return
        self._failure = failure_of(error)
        cause = self._failure.cause.value
        log.info("breaker.opened", registry=self._name, cause=cause, seconds=round(open_seconds, 1))

    def _is_first_to_fail(self, image: str) -> bool:
        return self._breaker.state() is State.CLOSED and self._failed_image in ("", image)


# Hosts whose breakers are kept.
HOSTS = declare_cache("resolver.registry_hosts.hosts", key="registry host", bound=4096)


class RegistryHosts:
    """The `size` registry hosts that were looked up last."""

    def __init__(self, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._hosts: LruTable[str, RegistryHost] = HOSTS.lru_table(size)
        self._clock = clock
        self._random = random

    def host(self, name: str) -> RegistryHost:
        """The host of this name (`host[:port]`), new if it is not kept."""
        host = self._hosts.peek(name)
        if host is None:
            self._hosts.put(name, host := RegistryHost(name, self._clock, self._random))
        return host

    def failure(self, name: str) -> Failure | None:
        """Why the host's breaker refuses lookups now; None if it admits them or the host is not kept."""
        host = self._hosts.peek(name)
        return host.failure() if host else None
