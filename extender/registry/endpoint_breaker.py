"""The circuit breakers of mirrors: which endpoint is not asked for a while, for images of which registry.

A breaker belongs to an endpoint and the registry that it is asked for, since a registry that hangs makes a mirror hang
for its own images alone. A 429 belongs to the credential beside. A registry without mirrors has no breaker here.
"""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.credentials.keyring import CredentialId
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.registry.endpoint import Endpoint
from extender.tables import LruTable

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
_MOST_BREAKERS = 1024  # with a mirror for all registries, every host that images name makes one

Key = tuple[str, str, CredentialId | None]


class EndpointAttempt(NamedTuple):
    """A request as an attempt at each of the two that may be to blame if it fails: the endpoint, the account there."""

    endpoint: Endpoint
    of_endpoint: tuple[Key, Attempt]
    of_account: tuple[Key, Attempt]


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

    def admit(self, endpoint: Endpoint, credential_id: CredentialId) -> EndpointAttempt:
        """Returns an attempt that the caller may make now, and records the outcome of, or releases.

        Raises:
            RegistryThrottled: the endpoint has told this credential to come back later.
            RegistryUnavailable: the endpoint has failed lately for images of this registry.
        """
        for key in _keys(endpoint, credential_id):
            breaker = self._rows.get(key)
            seconds = breaker.wait_seconds() if breaker else 0.0
            if seconds:
                words = f"{endpoint.name} has failed lately, and is asked again in {seconds:.0f} s"
                raise RegistryThrottled(words, seconds) if key[2] else RegistryUnavailable(words)
        return self.force(endpoint, credential_id)

    def force(self, endpoint: Endpoint, credential_id: CredentialId) -> EndpointAttempt:
        """Returns an attempt, whatever has failed lately."""
        of_endpoint, of_account = _keys(endpoint, credential_id)
        return EndpointAttempt(endpoint, (of_endpoint, self._begin(of_endpoint)), (of_account, self._begin(of_account)))

    def record_success(self, attempt: EndpointAttempt) -> None:
        """Records that the endpoint has answered, which closes what opened before the attempt began."""
        self._close(*attempt.of_endpoint)
        self._close(*attempt.of_account)

    def record_failure(self, attempt: EndpointAttempt, error: RegistryThrottled | RegistryUnavailable) -> None:
        """Records that the endpoint has failed the attempt. A 429 without a time backs off like any other failure."""
        (key, begun), stated = attempt.of_endpoint, None
        if isinstance(error, RegistryThrottled):
            self._close(key, begun)
            (key, begun), stated = attempt.of_account, error.retry_after_seconds
        breaker = self._rows.get(key)
        if breaker is None:
            breaker = CircuitBreaker(
                _BACKOFF, clock=self._clock, random=self._random, probe_seconds=self._probe_seconds
            )
            self._rows.put(key, breaker)
        seconds = breaker.record_failure(begun, stated)
        if seconds is not None:
            log.info("mirror.rested", registry=str(attempt.endpoint.root), of=attempt.endpoint.mirror_of,
                     seconds=round(seconds, 1), why=str(error))  # fmt: skip

    def release(self, attempt: EndpointAttempt) -> None:
        """Lets others try at once if the attempt was the one that others waited for, and ended without an outcome."""
        for key, begun in (attempt.of_endpoint, attempt.of_account):
            breaker = self._rows.get(key)
            if breaker:
                breaker.release(begun)

    def _begin(self, key: Key) -> Attempt:
        breaker = self._rows.get(key)
        return (breaker and breaker.admit()) or Attempt(self._clock())

    def _close(self, key: Key, begun: Attempt) -> None:
        breaker = self._rows.get(key)
        if breaker and breaker.record_success(begun):
            self._rows.remove(key)


def _keys(endpoint: Endpoint, credential_id: CredentialId) -> tuple[Key, Key]:
    """Returns the keys of the endpoint's breaker and of its credential's."""
    root = str(endpoint.root)
    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, credential_id)
