"""The circuit breakers of endpoints, for registries that have more than one endpoint.

Keeps a breaker for each endpoint that failed, by its root, and one for each credential that an endpoint throttles. The
resolver has the breakers of a registry without mirrors, by the host that images name.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.credentials.keyring import CredentialId
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.tables import CacheSpec, ShareTable, declare_cache, text_cost
from extender.turns import current_interest

K = TypeVar("K", str, tuple[str, CredentialId])

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# With a mirror for all registries, every host that images name is an endpoint.
_BREAKERS = declare_cache(
    "registry.endpoint_breaker.breakers",
    key="root of the endpoint",
    bound=1024,
    at_most="1 MB",
    invalidated_by="an answer",
)
_THROTTLED = declare_cache(
    "registry.endpoint_breaker.throttled",
    key="root of the endpoint, credential id",
    bound=1024,
    at_most="1 MB",
    invalidated_by="an answer to the credential",
)


class EndpointAttempt(NamedTuple):
    """One use of an endpoint with one credential: an attempt at the endpoint, and one with the credential."""

    at_endpoint: Attempt
    as_account: Attempt


class _OpenBreaker(NamedTuple):
    """A breaker, and the tenant whose lookup opened it."""

    breaker: CircuitBreaker
    owner: str


def _root_of(key: str | tuple[str, CredentialId]) -> str:
    return key if isinstance(key, str) else key[0]


class _OpenBreakers(Generic[K]):
    """The breakers of what failed, by key. Whatever has no row has not failed since its last answer.

    A tenant evicts the breakers that its own lookups opened before those of others.
    """

    def __init__(self, spec: CacheSpec, size: int, new: Callable[[], CircuitBreaker]) -> None:
        self._rows: ShareTable[K, _OpenBreaker] = spec.share_table(
            size, owner_of=lambda _, row: row.owner, cost_of=lambda key, _: text_cost(_root_of(key))
        )
        self._new = new

    def wait_seconds(self, key: K) -> float:
        row = self._rows.peek(key)
        return row.breaker.wait_seconds() if row else 0.0

    def admit(self, key: K) -> Attempt | None:
        row = self._rows.peek(key)
        return row.breaker.admit() if row else None

    def release(self, key: K, attempt: Attempt) -> None:
        row = self._rows.peek(key)
        if row:
            row.breaker.release(attempt)

    def record_success(self, key: K, attempt: Attempt) -> None:
        row = self._rows.peek(key)
        if row and row.breaker.record_success(attempt):
            self._rows.remove(key)

    def record_failure(self, key: K, attempt: Attempt, retry_after_seconds: float | None) -> float | None:
        row = self._rows.peek(key) or _OpenBreaker(self._new(), current_interest().first)
        seconds = row.breaker.record_failure(attempt, retry_after_seconds)
        if seconds is not None:
            self._rows.put(key, row)
        return seconds


class EndpointBreakers:
    """The breakers of endpoints that failed. Every other endpoint counts as one that has not failed.

    A 429 opens the breaker of the credential at that endpoint, any other failure that of the endpoint.
    """

    def __init__(
        self,
        *,
        probe_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        size: int = _BREAKERS.rows,
    ) -> None:
        """Keeps at most `size` breakers of each kind. `clock` gives monotonic seconds, `random` numbers up to 1."""
        self._clock = clock

        def new() -> CircuitBreaker:
            return CircuitBreaker(_BACKOFF, clock=clock, random=random, probe_seconds=probe_seconds)

        self._endpoints: _OpenBreakers[str] = _OpenBreakers(_BREAKERS, size, new)
        self._accounts: _OpenBreakers[tuple[str, CredentialId]] = _OpenBreakers(_THROTTLED, size, new)

    def admit(self, root: str, credential_id: CredentialId) -> EndpointAttempt:
        """Returns an attempt at the endpoint with the credential. The caller records its outcome or releases it.

        Raises:
            RegistryThrottled, RegistryUnavailable: a breaker refuses the attempt.
        """
        if self._endpoints.wait_seconds(root):
            raise RegistryUnavailable(f"{root} has failed and is not asked for a while")
        pause_seconds = self._accounts.wait_seconds((root, credential_id))
        if pause_seconds:
            raise RegistryThrottled(f"{root} has asked for a pause", pause_seconds)
        forced = self.force(root, credential_id)
        return EndpointAttempt(
            self._endpoints.admit(root) or forced.at_endpoint,
            self._accounts.admit((root, credential_id)) or forced.as_account,
        )

    def force(self, _root: str, _credential_id: CredentialId) -> EndpointAttempt:
        """Returns an attempt that is made in any state of the breakers."""
        return EndpointAttempt(Attempt(self._clock()), Attempt(self._clock()))

    def release(self, root: str, credential_id: CredentialId, attempt: EndpointAttempt) -> None:
        """Ends the attempt. Has an effect only if no outcome was recorded."""
        self._endpoints.release(root, attempt.at_endpoint)
        self._accounts.release((root, credential_id), attempt.as_account)

    def record_success(self, root: str, credential_id: CredentialId, attempt: EndpointAttempt) -> None:
        """Records that the endpoint has answered the credential."""
        self._endpoints.record_success(root, attempt.at_endpoint)
        self._accounts.record_success((root, credential_id), attempt.as_account)

    def record_failure(
        self,
        root: str,
        credential_id: CredentialId,
        attempt: EndpointAttempt,
        error: RegistryThrottled | RegistryUnavailable,
    ) -> None:
        """Records that the endpoint has failed the attempt. A 429 without a time backs off like any other failure."""
        if isinstance(error, RegistryThrottled):
            self._endpoints.record_success(root, attempt.at_endpoint)
            account, stated = (root, credential_id), error.retry_after_seconds
            seconds = self._accounts.record_failure(account, attempt.as_account, stated)
        else:
            seconds = self._endpoints.record_failure(root, attempt.at_endpoint, None)
        if seconds is not None:
            log.info("mirror.rested", registry=root, seconds=round(seconds, 1), why=str(error))
