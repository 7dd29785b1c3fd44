"""The circuit breakers of registry hosts, and of accounts that hosts throttle: where blame is certain.

A failure belongs to its name and credential, in `failures`. A 429 belongs to the credential at that host. Only
connections that do not come about belong to the host: any other failure may be one that a pod's author has chosen.
"""

import contextlib
import math
from collections.abc import Callable, Iterator

import structlog

from extender.circuit_breaker import CircuitBreaker
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
# How long one probe has before another is admitted: as long as a connection may take.
_PROBE_SECONDS = 5.0

_HOSTS = declare_cache("resolver.host_breakers.hosts", key="registry host", rows=1_024, most_mb=1.5)
_ACCOUNTS = declare_cache("resolver.host_breakers.accounts", key="registry host, credential id", rows=1_024, most_mb=1)

_Account = tuple[str, CredentialId]  # a host's name, credential id


class BreakerOpen(RegistryError):
    """A breaker refuses the request, which was not sent; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class _Host:
    """What is known of a host: its breaker, and which repositories have failed there since its last answer."""

    __slots__ = ("answered_at", "breaker", "repositories")

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.answered_at = -math.inf
        self.repositories: set[str] = set()


class HostBreakers:
    """The breakers of the hosts and accounts that were used last.

    A host's breaker opens when connections to it fail for three repositories in a row and nothing there has answered
    for ten seconds. After its time one probe at a time is admitted. Any answer closes it. An account's breaker opens
    with a 429, for as long as the registry says.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._hosts: LruTable[str, _Host] = LruTable(_HOSTS.bound())
        self._accounts: LruTable[_Account, CircuitBreaker] = LruTable(_ACCOUNTS.bound())
        self._clock = clock
        self._random = random

    def failure(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """Why requests for the target with this credential are refused now; None if they are admitted."""
        name = target.reference.domain
        host = self._hosts.get(name)
        if host and host.breaker.wait_seconds():
            return UNAVAILABLE
        account = self._accounts.get((name, credential_id))
        return THROTTLED if account and account.wait_seconds() else None

    def throttled_seconds(self, host: str, credential_id: CredentialId) -> float:
        """How long requests with this credential are refused from now on since the host throttles it."""
        account = self._accounts.get((host, credential_id))
        return account.wait_seconds() if account else 0.0

    @contextlib.contextmanager
    def visit(self, target: Target, credential_id: CredentialId) -> Iterator[None]:
        """Records the outcome of the body, which sends the request. Raises BreakerOpen if it is refused now."""
        failure = self.failure(target, credential_id)
        if failure:
            raise BreakerOpen(failure)
        account = (target.reference.domain, credential_id)
        self._host_of(target.reference.domain).breaker.admit()
        if throttled := self._accounts.get(account):
            throttled.admit()
        try:
            yield
        except (RegistryError, InvalidManifest, UnsupportedManifest) as error:
            self._record(target.repository, account, error)
            raise
        else:
            self._record_answer(account)

    def _record(
        self, repository: str, account: _Account, error: RegistryError | InvalidManifest | UnsupportedManifest
    ) -> None:
        match error:
            case RegistryThrottled(host_is_well=False):
                self._record_host_answer(account[0])
                self._record_throttling(account, error)
            case RegistryUnreachable(host_is_well=False):
                self._record_failure(account[0], repository)
            case RegistryFailed() | RegistryUnavailable(host_is_well=True):
                self._record_host_answer(account[0])
            case RegistryThrottled() | RegistryUnavailable() | AddressRefused():
                pass  # which tells nothing about the host
            case _:
                self._record_answer(account)

    def _host_of(self, name: str) -> _Host:
        host = self._hosts.get(name)
        if host is None:
            host = _Host(self._new_breaker())
            self._hosts.put(name, host)
        return host

    def _new_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(BACKOFF, clock=self._clock, random=self._random, probe_seconds=_PROBE_SECONDS)

    def _record_answer(self, account: _Account) -> None:
        self._record_host_answer(account[0])
        breaker = self._accounts.get(account)
        if breaker and not breaker.is_open:  # an answer to what was asked before the 429 ends no throttling
            self._accounts.remove(account)
            log.info("breaker.closed", registry=account[0], credential_id=account[1])

    def _record_host_answer(self, name: str) -> None:
        host = self._host_of(name)
        host.answered_at = self._clock()
        host.repositories.clear()
        if host.breaker.record_success():
            log.info("breaker.closed", registry=name)

    def _record_failure(self, name: str, repository: str) -> None:
        host = self._host_of(name)
        if not host.breaker.failures:
            if len(host.repositories) < _REPOSITORIES:
                host.repositories.add(repository)
            is_well = self._clock() - host.answered_at < _ANSWERED_LATELY_SECONDS
            if is_well or len(host.repositories) < _REPOSITORIES:
                return
        seconds = host.breaker.record_failure()
        if seconds is not None:
            _log_opening(seconds, UNAVAILABLE, registry=name)

    def _record_throttling(self, account: _Account, error: RegistryThrottled) -> None:
        breaker = self._accounts.get(account)
        if breaker is None:
            breaker = self._new_breaker()
            self._accounts.put(account, breaker)
        seconds = breaker.record_failure(retry_after_seconds(error))
        if seconds is not None:
            _log_opening(seconds, THROTTLED, registry=account[0], credential_id=account[1])


def _log_opening(seconds: float, failure: Failure, **fields: str) -> None:
    log.info("breaker.opened", cause=failure.cause.value, seconds=round(seconds, 1), **fields)
