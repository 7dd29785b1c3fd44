"""The circuit breakers of mirrors: which endpoint is not asked for a while, for images of which registry.

A breaker belongs to an endpoint and the registry that it is asked for, since a registry that hangs makes a mirror hang
for its own images alone. A 429 belongs to the credential beside. A registry without mirrors has no breaker here.
"""

from collections.abc import Callable

import structlog

from extender.circuit_breaker import Backoff, CircuitBreaker
from extender.credentials.keyring import CredentialId
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.registry.endpoint import Endpoint
from extender.tables import LruTable

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
_MOST_BREAKERS = 1024  # with a mirror for all registries, every host that images name makes one

Key = tuple[str, str, CredentialId | None]


class EndpointBreakers:
    """The breakers of endpoints that failed. Every other endpoint counts as one that has not failed."""

    def __init__(
        self,
        *,
        probe_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        size: int = _MOST_BREAKERS,
    ) -> None:
        """Keeps at most `size` breakers; the rest is as in `CircuitBreaker`."""
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rows: LruTable[Key, CircuitBreaker] = LruTable(size)

    def admit(self, endpoint: Endpoint, credential_id: CredentialId) -> None:
        """Returns if the endpoint may be asked now.

        Raises:
            RegistryThrottled: the endpoint has told this credential to come back later.
            RegistryUnavailable: the endpoint has failed lately for images of this registry.
        """
        breakers = [(key, self._rows.get(key)) for key in _keys(endpoint, credential_id)]
        for key, breaker in breakers:
            seconds = breaker.wait_seconds() if breaker else 0.0
            if seconds:
                words = f"{endpoint.name} has failed lately, and is asked again in {seconds:.0f} s"
                raise RegistryThrottled(words, seconds) if key[2] else RegistryUnavailable(words)
        for _, breaker in breakers:
            if breaker:
                breaker.admit()

    def record_success(self, endpoint: Endpoint, credential_id: CredentialId) -> None:
        """Records that the endpoint has answered. That ends no 429 before its time: it may have been asked earlier."""
        of_endpoint, of_account = _keys(endpoint, credential_id)
        self._rows.remove(of_endpoint)
        throttled = self._rows.get(of_account)
        if throttled and not throttled.is_open:
            self._rows.remove(of_account)

    def record_failure(
        self, endpoint: Endpoint, credential_id: CredentialId, error: RegistryThrottled | RegistryUnavailable
    ) -> None:
        """Records that the endpoint has failed. A 429 without a time backs off like any other failure."""
        (key, of_account), stated = _keys(endpoint, credential_id), None
        if isinstance(error, RegistryThrottled):
            self._rows.remove(key)
            key, stated = of_account, error.retry_after_seconds
        breaker = self._rows.get(key)
        if breaker is None:
            breaker = CircuitBreaker(
                _BACKOFF, clock=self._clock, random=self._random, probe_seconds=self._probe_seconds
            )
            self._rows.put(key, breaker)
        seconds = breaker.record_failure(stated)
        if seconds is not None:
            log.info("mirror.rested", registry=str(endpoint.root), of=endpoint.mirror_of,
                     seconds=round(seconds, 1), why=str(error))  # fmt: skip


def _keys(endpoint: Endpoint, credential_id: CredentialId) -> tuple[Key, Key]:
    """Returns the keys of the endpoint's breaker and of its credential's."""
    root = str(endpoint.root)
    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, credential_id)
