"""Registry hosts: circuit breakers for what fails there, and a limit on the lookups at each at the same time."""

import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import structlog

from extender.budgets import declare_budget
from extender.circuit_breaker import Attempt, CircuitBreaker, State
from extender.credentials.keyring import CredentialId
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Failure
from extender.images.digest import PackedDigest
from extender.resolver.failures import BACKOFF, THROTTLED, UNAVAILABLE, retry_after_seconds
from extender.resolver.references import Target
from extender.tables import CacheSpec, ShareTable, declare_cache, text_cost
from extender.turns import REVOKE_SECONDS, TurnRevoked, Turns, current_interest

K = TypeVar("K", str, tuple[str, CredentialId])

log = structlog.get_logger()

# Errors that show that the host answers.
_ANSWERS = (ManifestNotFound, RegistryDenied, RegistryRefusedImage, InvalidManifest, UnsupportedManifest)
# Lookups in flight at one host; others wait. Twice the client's default concurrency keeps the client busy, and a host
# that stalls holds up no more lookups than these.
_LOOKUPS_AT_HOST = 16
# Of them, those of a tenant while no other wants the host.
_LOOKUPS_EACH_AT_HOST = 12
# Lookups that begin in a second. Each takes two milliseconds of processor time, so they take a third of a core,
# whatever pods name and however quickly registries refuse it.
_LOOKUPS_PER_SECOND = 150.0
_LOOKUPS_BURST = 32  # after a time of quiet
_LOOKUPS = declare_budget(
    "resolver.registry_hosts.lookups",
    unit="lookups that send requests",
    total=256,
    most_each=64,
    why="the connections of the session with registries, so that no request waits for one in the order of arrival; "
    f"at one host {_LOOKUPS_AT_HOST}, and {_LOOKUPS_EACH_AT_HOST} for one tenant alone; "
    f"{_LOOKUPS_PER_SECOND:g} begin in a second, for the processor time they take",
)


class BreakerOpen(RegistryError):
    """A breaker refuses the lookup, and no request was sent; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


_HOSTS = declare_cache(
    "resolver.registry_hosts.hosts",
    key="registry host",
    bound=4096,
    at_most="4 MB",
    invalidated_by="an answer of the host",
)
_REPOSITORIES = declare_cache(
    "resolver.registry_hosts.repositories",
    key="repository",
    bound=4096,
    at_most="4 MB",
    invalidated_by="an answer about it",
)
_ACCOUNTS = declare_cache(
    "resolver.registry_hosts.accounts",
    key="registry host, credential id",
    bound=4096,
    at_most="4 MB",
    invalidated_by="an answer to the credential",
)


_PROJECTS = declare_cache(
    "resolver.registry_hosts.projects",
    key="registry host, first part of a repository's path",
    bound=4096,
    at_most="4 MB",
    invalidated_by="an answer about it",
)
_ANSWERED = declare_cache(
    "resolver.registry_hosts.answered",
    key="registry host",
    bound=4096,
    at_most="2 MB",
)
# A host that has answered so lately does not rest, whatever fails there: somebody gets what is asked for.
_ANSWERED_LATELY_SECONDS = 10.0


_FAILED_ONCE = declare_cache(
    "resolver.registry_hosts.failed_once",
    key="registry host, project or repository",
    bound=4096,
    at_most="3 MB",
    invalidated_by="an answer, a second failure",
)


class _Row(NamedTuple):
    """The breaker of something that failed, and the tenant whose lookup showed that."""

    breaker: CircuitBreaker
    owner: str


class _Suspicion(NamedTuple):
    """The part of something that failed last, since when nothing of it has answered, and whose lookup that was."""

    failed_part: PackedDigest
    owner: str


class _Breakers(Generic[K]):
    """The open breakers of what failed, by key. Whatever has no row has not failed, or only one part of it has.

    What failed once has a table of its own, so that names that fail once evict no open breaker. In both tables a tenant
    evicts its own rows before those of others.
    """

    def __init__(self, spec: CacheSpec, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._rows: ShareTable[K, _Row] = spec.share_table(size, owner_of=_owner_of, cost_of=_cost_of)
        self._failed_once: ShareTable[K, _Suspicion] = _FAILED_ONCE.share_table(
            size, owner_of=_owner_of, cost_of=_cost_of
        )
        self._clock = clock
        self._random = random

    def is_open(self, key: K) -> bool:
        """Whether attempts are refused now."""
        row = self._rows.peek(key)
        return row is not None and row.breaker.wait_seconds() > 0

    def admit(self, key: K) -> Attempt:
        """An attempt, for a caller that has made sure that the breaker is not open."""
        row = self._rows.peek(key)
        return (row.breaker.admit() if row else None) or Attempt(self._clock())

    def release(self, key: K, attempt: Attempt) -> None:
        """Ends the attempt. Has an effect only if no outcome was recorded."""
        row = self._rows.peek(key)
        if row:
            row.breaker.release(attempt)

    def record_success(self, key: K, attempt: Attempt) -> bool:
        """Records an answer. Returns whether it closed an open breaker."""
        self._failed_once.remove(key)
        row = self._rows.peek(key)
        if row is None:
            return False
        is_closed_now = row.breaker.record_success(attempt)
        if row.breaker.state() is State.CLOSED:
            self._rows.remove(key)
        return is_closed_now

    def record_failure(self, key: K, attempt: Attempt, retry_after_seconds: float | None = None) -> float | None:
        """Opens the breaker. Returns for how many seconds, or None if the failure changes nothing."""
        row = self._rows.peek(key)
        if row is None:
            row = _Row(CircuitBreaker(BACKOFF, clock=self._clock, random=self._random), current_interest().first)
            self._rows.put(key, row)
        return row.breaker.record_failure(attempt, retry_after_seconds)

    def record_failure_of(self, part: PackedDigest, key: K, attempt: Attempt) -> float | None:
        """As `record_failure`, but a closed breaker opens only if another part failed right before this one."""
        if self._rows.peek(key) is None:
            before = self._failed_once.peek(key)
            if before is None or before.failed_part == part:
                self._failed_once.put(key, _Suspicion(part, current_interest().first))
                return None
            self._failed_once.remove(key)
        return self.record_failure(key, attempt)


def _owner_of(_key: Hashable, row: "_Row | _Suspicion | _Answer") -> str:
    return row.owner


def _cost_of(key: str | tuple[str, CredentialId], _row: object) -> int:
    return text_cost(key if isinstance(key, str) else key[0])


class _Visit(NamedTuple):
    """A lookup at a host, as an attempt at each of the four that may be to blame if it fails."""

    target: Target
    account: tuple[str, CredentialId]
    at_host: Attempt
    at_project: Attempt
    at_repository: Attempt
    at_account: Attempt

    @property
    def host(self) -> str:
        return self.target.reference.domain

    @property
    def project(self) -> str:
        return _project_of(self.target)

    @property
    def repository(self) -> str:
        return self.target.repository


class _Answer(NamedTuple):
    """When a host answered last, and the tenant whose lookup that was."""

    at: float
    owner: str


def _project_of(target: Target) -> str:
    """The host and the first part of the path, which most registries give to one customer; a repository without one."""
    path = target.reference.path
    return f"{target.reference.domain}/{path.partition('/')[0]}" if "/" in path else target.repository


class RegistryHosts:
    """The registry hosts that were looked up last, and the breakers of what failed: `size` rows of each kind.

    A 429 opens the breaker of the account that got it: the credential at that host, or the anonymous one. The breaker
    of a repository opens when two different names of it in a row were unavailable, that of a project when two different
    repositories were, and that of a host when two different projects were and nothing there has answered for ten
    seconds: what is smaller may be unavailable for a reason of its own. Any answer to a probe closes the breaker.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float], size: int = _HOSTS.rows) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._turns = Turns(
            _LOOKUPS,
            clock,
            at_host=_LOOKUPS_AT_HOST,
            most_each_at_host=_LOOKUPS_EACH_AT_HOST,
            per_second=_LOOKUPS_PER_SECOND,
            burst=_LOOKUPS_BURST,
        )
        self._hosts: _Breakers[str] = _Breakers(_HOSTS, size, clock, random)
        self._projects: _Breakers[str] = _Breakers(_PROJECTS, size, clock, random)
        self._repositories: _Breakers[str] = _Breakers(_REPOSITORIES, size, clock, random)
        self._accounts: _Breakers[tuple[str, CredentialId]] = _Breakers(_ACCOUNTS, size, clock, random)
        self._answered: ShareTable[str, _Answer] = _ANSWERED.share_table(size, owner_of=_owner_of, cost_of=_cost_of)
        self._clock = clock

    def failure(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """Why lookups of the target with this credential are refused now; None if they are admitted."""
        host = target.reference.domain
        if (
            self._hosts.is_open(host)
            or self._projects.is_open(_project_of(target))
            or self._repositories.is_open(target.repository)
        ):
            return UNAVAILABLE
        return THROTTLED if self._accounts.is_open((host, credential_id)) else None

    @contextlib.asynccontextmanager
    async def visit(self, target: Target, credential_id: CredentialId) -> AsyncIterator[None]:
        """Admits one lookup when it is the turn of one of its tenants; records the body's outcome in the breakers.

        Raises:
            BreakerOpen: a breaker refuses the lookup now.
            TurnLost: the lookup was dropped while it waited for its turn.
            RegistryUnavailable: it held its turn for long while others waited.
        """
        visit: _Visit | None = None
        try:
            async with self._turns.turn(target.reference.domain):
                visit = self._admit(target, credential_id)
                async with self._recording(visit):
                    yield
        except TurnRevoked as exc:
            if visit:
                self._record_failure(visit)
            words = f"{target.reference.domain} did not answer within {REVOKE_SECONDS:g} s, and others wait for it"
            raise RegistryUnavailable(words) from exc

    @contextlib.asynccontextmanager
    async def _recording(self, visit: _Visit) -> AsyncIterator[None]:
        """Records the body's outcome in the breakers."""
        try:
            yield
        except RegistryThrottled as error:
            self._record_answer(visit)
            if not error.host_is_well:
                self._record_throttling(visit, error)
            raise
        except RegistryNotAsked:
            raise  # which tells nothing about the host
        except RegistryUnavailable as error:
            if error.host_is_well:
                self._record_answer(visit)
            else:
                self._record_failure(visit)
            raise
        except _ANSWERS:
            self._record_answer(visit)
            self._record_end_of_throttling(visit)
            raise
        else:
            self._record_answer(visit)
            self._record_end_of_throttling(visit)
        finally:
            self._hosts.release(visit.host, visit.at_host)
            self._projects.release(visit.project, visit.at_project)
            self._repositories.release(visit.repository, visit.at_repository)
            self._accounts.release(visit.account, visit.at_account)

    def _admit(self, target: Target, credential_id: CredentialId) -> _Visit:
        failure = self.failure(target, credential_id)
        if failure:
            raise BreakerOpen(failure)
        host, account = target.reference.domain, (target.reference.domain, credential_id)
        return _Visit(
            target,
            account,
            self._hosts.admit(host),
            self._projects.admit(_project_of(target)),
            self._repositories.admit(target.repository),
            self._accounts.admit(account),
        )

    def _record_answer(self, visit: _Visit) -> None:
        self._answered.put(visit.host, _Answer(self._clock(), current_interest().first))
        if self._hosts.record_success(visit.host, visit.at_host):
            log.info("breaker.closed", registry=visit.host)
        if self._projects.record_success(visit.project, visit.at_project):
            log.info("breaker.closed", registry=visit.host, project=visit.project)
        if self._repositories.record_success(visit.repository, visit.at_repository):
            log.info("breaker.closed", registry=visit.host, repository=visit.repository)

    def _record_end_of_throttling(self, visit: _Visit) -> None:
        if self._accounts.record_success(visit.account, visit.at_account):
            log.info("breaker.closed", registry=visit.host, credential_id=visit.account[1])

    def _record_throttling(self, visit: _Visit, error: RegistryThrottled) -> None:
        seconds = self._accounts.record_failure(visit.account, visit.at_account, retry_after_seconds(error))
        _log_opening(seconds, THROTTLED, registry=visit.host, credential_id=visit.account[1])

    def _record_failure(self, visit: _Visit) -> None:
        seconds = self._repositories.record_failure_of(visit.target.name, visit.repository, visit.at_repository)
        _log_opening(seconds, UNAVAILABLE, registry=visit.host, repository=visit.repository)
        seconds = self._projects.record_failure_of(visit.repository, visit.project, visit.at_project)
        _log_opening(seconds, UNAVAILABLE, registry=visit.host, project=visit.project)
        answered = self._answered.peek(visit.host)
        if answered is None or self._clock() - answered.at >= _ANSWERED_LATELY_SECONDS:
            seconds = self._hosts.record_failure_of(visit.project, visit.host, visit.at_host)
            _log_opening(seconds, UNAVAILABLE, registry=visit.host)


def _log_opening(seconds: float | None, failure: Failure, **fields: str) -> None:
    if seconds is not None:
        log.info("breaker.opened", cause=failure.cause.value, seconds=round(seconds, 1), **fields)
