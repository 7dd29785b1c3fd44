"""The circuit breakers of registry hosts, and of accounts that hosts throttle: where blame is certain.

A failure belongs to its name and credential, in `failures`. A 429 belongs to the credential at that host. Only
connections that do not come about belong to the host: any other failure may be one that a pod's author has chosen.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from extender.circuit_breaker import Attempt, CircuitBreaker, State
from extender.credentials.keyring import CredentialId
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    RegistryError,
    RegistryFailed,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsupportedManifest,
)
from extender.images.content import Failure
from extender.resolver.failures import BACKOFF, THROTTLED, UNAVAILABLE, retry_after_seconds
from extender.resolver.image_cache import Target
from extender.tables import LruTable, declare_cache

log = structlog.get_logger()

# Repositories of a host, one after the other, to which no connection comes about before the host's breaker opens.
_REPOSITORIES = 3
# A host that has answered so lately keeps its breaker closed, whatever fails there: somebody gets what is asked for.
_ANSWERED_LATELY_SECONDS = 10.0
# For so long after the breaker's time, the probe is left to other tenants than the one that failed there last.
_OTHERS_FIRST_SECONDS = 5.0

_HOSTS = declare_cache("resolver.host_breakers.hosts", key="registry host", rows=1_024, most_mb=1.5)
_ACCOUNTS = declare_cache("resolver.host_breakers.accounts", key="registry host, credential id", rows=1_024, most_mb=1)


class BreakerOpen(RegistryError):
    """A breaker refuses the request, which was not sent; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class _Host:
    """What is known of a host: its breaker, and which repositories have failed there since its last answer."""

    __slots__ = ("answered_at", "breaker", "failed_tenant", "open_until", "repositories")

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.answered_at = -math.inf
        self.repositories: set[str] = set()
        self.open_until = -math.inf
        self.failed_tenant = ""


class _Visit(NamedTuple):
    """A request as an attempt at each of the two that may be to blame if it fails."""

    repository: str
    account: tuple[str, CredentialId]  # the host's name, credential id
    tenant: str
    host: _Host
    at_host: Attempt
    as_account: Attempt


class HostBreakers:
    """The breakers of the hosts and accounts that were used last.

    A host's breaker opens when connections to it fail for three repositories in a row and nothing there has answered
    for ten seconds. After its time one probe at a time is admitted, first of other tenants than the one that failed
    last. Any answer closes it. An account's breaker opens with a 429, for as long as the registry says.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._hosts: LruTable[str, _Host] = LruTable(_HOSTS.bound())
        self._accounts: LruTable[tuple[str, CredentialId], CircuitBreaker] = LruTable(_ACCOUNTS.bound())
        self._clock = clock
        self._random = random

    def failure(self, target: Target, credential_id: CredentialId, tenant: str) -> Failure | None:
        """Why requests for the target with this credential are refused now; None if they are admitted."""
        name = target.reference.domain
        host = self._hosts.get(name)
        if host and host.breaker.failures and (host.breaker.wait_seconds() or self._is_for_others(host, tenant)):
            return UNAVAILABLE
        account = self._accounts.get((name, credential_id))
        return THROTTLED if account and account.wait_seconds() else None

    def throttled_seconds(self, host: str, credential_id: CredentialId) -> float:
        """How long requests with this credential are refused from now on since the host throttles it."""
        account = self._accounts.get((host, credential_id))
        return account.wait_seconds() if account else 0.0

    @contextlib.contextmanager
    def visit(self, target: Target, credential_id: CredentialId, tenant: str) -> Iterator[None]:
        """Records the outcome of the body, which sends the request. Raises BreakerOpen if it is refused now."""
        failure = self.failure(target, credential_id, tenant)
        if failure:
            raise BreakerOpen(failure)
        account = (target.reference.domain, credential_id)
        host, throttled = self._host_of(target.reference.domain), self._accounts.get(account)
        at_host = host.breaker.admit() or Attempt(self._clock())
        as_account = (throttled and throttled.admit()) or Attempt(self._clock())
        visit = _Visit(target.repository, account, tenant, host, at_host, as_account)
        try:
            yield
        except (RegistryError, InvalidManifest, UnsupportedManifest) as error:
            self._record(visit, error)
            raise
        else:
            self._record_answer(visit)
        finally:
            host.breaker.release(at_host)
            if throttled:
                throttled.release(as_account)

    def _record(self, visit: _Visit, error: RegistryError | InvalidManifest | UnsupportedManifest) -> None:
        match error:
            case RegistryThrottled(host_is_well=False):
                self._record_host_answer(visit)
                self._record_throttling(visit, error)
            case RegistryUnreachable(host_is_well=False):
                self._record_failure(visit)
            case RegistryFailed() | RegistryUnavailable(host_is_well=True):
                self._record_host_answer(visit)
            case RegistryThrottled() | RegistryUnavailable() | AddressRefused():
                pass  # which tells nothing about the host
            case _:
                self._record_answer(visit)

    def _is_for_others(self, host: _Host, tenant: str) -> bool:
        return tenant == host.failed_tenant and self._clock() < host.open_until + _OTHERS_FIRST_SECONDS

    def _host_of(self, name: str) -> _Host:
        host = self._hosts.get(name)
        if host is None:
            host = _Host(self._new_breaker())
            self._hosts.put(name, host)
        return host

    def _new_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(BACKOFF, clock=self._clock, random=self._random)

    def _record_answer(self, visit: _Visit) -> None:
        self._record_host_answer(visit)
        breaker = self._accounts.get(visit.account)
        if breaker and breaker.record_success(visit.as_account):
            self._accounts.remove(visit.account)
            log.info("breaker.closed", registry=visit.account[0], credential_id=visit.account[1])

    def _record_host_answer(self, visit: _Visit) -> None:
        visit.host.answered_at = self._clock()
        visit.host.repositories.clear()
        if visit.host.breaker.record_success(visit.at_host):
            log.info("breaker.closed", registry=visit.account[0])

    def _record_failure(self, visit: _Visit) -> None:
        host = visit.host
        host.failed_tenant = visit.tenant
        if host.breaker.state() is State.CLOSED:
            if len(host.repositories) < _REPOSITORIES:
                host.repositories.add(visit.repository)
            is_well = self._clock() - host.answered_at < _ANSWERED_LATELY_SECONDS
            if is_well or len(host.repositories) < _REPOSITORIES:
                return
        seconds = host.breaker.record_failure(visit.at_host)
        if seconds is not None:
            host.open_until = self._clock() + seconds
            _log_opening(seconds, UNAVAILABLE, registry=visit.account[0])

    def _record_throttling(self, visit: _Visit, error: RegistryThrottled) -> None:
        breaker = self._accounts.get(visit.account)
        if breaker is None:
            breaker = self._new_breaker()
            self._accounts.put(visit.account, breaker)
        seconds = breaker.record_failure(visit.as_account, retry_after_seconds(error))
        if seconds is not None:
            _log_opening(seconds, THROTTLED, registry=visit.account[0], credential_id=visit.account[1])


def _log_opening(seconds: float, failure: Failure, **fields: str) -> None:
    log.info("breaker.opened", cause=failure.cause.value, seconds=round(seconds, 1), **fields)
