"""Whether a registry host may be asked now, and how many may ask it at once.

Knows hosts and their troubles, and nothing of what is asked.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Failure
from extender.resolver.failures import failure_of, lifetime_seconds
from extender.tables import Table

log = structlog.get_logger()

# Errors by which a host shows that it is well.
_ANSWERS = (ManifestNotFound, RegistryDenied, InvalidManifest, UnsupportedManifest)
# Lookups under way at one host; the rest wait here. Twice what the client lets through by default keeps it busy, and
# a host that stalls holds up no more than these.
_LOOKUPS_AT_ONCE = 16


class HostResting(RegistryError):
    """The host is given a rest and was not asked; `failure` is why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Host:
    """One registry host, and its breaker.

    Closed: lookups go through. Open, after *throttled*, or after two different images in a row were *unavailable* (one
    image's trouble may be its own): nothing is asked until it ends. Then one lookup goes through as a probe: any
    answer closes the breaker, another failure opens it for longer.
    """

    def __init__(self, name: str, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._random = random
        self._room = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._failure: Failure | None = None
        self._until = 0.0
        self._strikes = 0
        self._suspect = ""
        self._probed = False

    def resting(self) -> Failure | None:
        """Why the host is not to be asked now; None if it may be."""
        return self._failure if self._probed or self._clock() < self._until else None

    @contextlib.asynccontextmanager
    async def visit(self, image: str) -> AsyncIterator[None]:
        """One lookup at the host, once there is room; what it raises tells how the host is.

        Raises:
            HostResting: it is not to be asked now.
        """
        async with self._room:
            failure = self.resting()
            if failure:
                raise HostResting(failure)
            probe = self._probed = self._failure is not None
            try:
                yield
                self._recover()
            except _ANSWERS:
                self._recover()
                raise
            except (RegistryThrottled, RegistryUnavailable) as error:
                if error.host_is_well:
                    self._recover()
                else:
                    self._suffer(image, error)
                raise
            finally:
                if probe:
                    self._probed = False

    def _recover(self) -> None:
        if self._clock() < self._until:
            return  # asked before the host fell ill
        if self._failure:
            log.info("breaker.closed", registry=self._name)
        self._failure, self._strikes, self._suspect = None, 0, ""

    def _suffer(self, image: str, error: RegistryError) -> None:
        throttled = isinstance(error, RegistryThrottled)
        is_open = self._clock() < self._until
        if not throttled and (is_open or (self._failure is None and self._suspect in ("", image))):
            self._suspect = image
            return
        if not is_open:
            self._strikes += 1
        self._failure = failure_of(error)
        seconds = lifetime_seconds(error, self._strikes, self._random)
        self._until = max(self._until, self._clock() + seconds)
        log.info("breaker.opened", registry=self._name, cause=self._failure.cause.value, seconds=round(seconds, 1))


class Hosts:
    """The hosts asked most recently, of at most `size`."""

    def __init__(self, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._hosts: Table[str, Host] = Table(size)
        self._clock = clock
        self._random = random

    def host(self, name: str) -> Host:
        """The host of this name (`host[:port]`)."""
        host = self._hosts.peek(name)
        if host is None:
            self._hosts.put(name, host := Host(name, self._clock, self._random))
        return host

    def resting(self, name: str) -> Failure | None:
        """Why the host is not to be asked now; None if it may be, or never was."""
        host = self._hosts.peek(name)
        return host.resting() if host else None
