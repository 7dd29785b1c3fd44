"""Circuit breakers of the hosts, mirrors and accounts that requests go to, in one table.

Blame has to be certain, since whoever creates pods chooses the names that fail. A 429 opens the breaker of its account
at its host. A host's opens when no connection to it comes about. A mirror's opens for one registry after any failure,
as long as another endpoint can be asked instead: a registry that hangs makes its mirrors hang. An answer, a 5xx too,
opens none.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeGuard

import msgspec
import structlog

from extender.circuit_breaker import Backoff, CircuitBreaker
from extender.credentials.keyring import CredentialId
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    QuotaReserved,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
)
from extender.registry.endpoint import Endpoint
from extender.registry_metrics import MIRRORS
from extender.tables import LruTable

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# Repositories of a host, one after the other, to which no connection comes about, before its breaker opens for all.
_REPOSITORIES = 3
# The breaker of a host that has answered so lately stays closed, whatever fails there: somebody gets what is asked for.
_ANSWERED_LATELY_SECONDS = 10.0
_LEAST_SECONDS = 1.0  # until whoever was refused asks again, as after a Retry-After
# A row takes some 500 bytes, and every host that images name has one.
_MOST_ROWS = 2048

Failure = RegistryError | InvalidManifest
_DENIALS = (ManifestNotFound, RegistryDenied, RegistryRefusedImage)
REFUSALS = (*_DENIALS, InvalidManifest)

Key = tuple[str, str, CredentialId | None]
"""The root of an endpoint, the registry that it mirrors or nothing, and the account there or None for all of them."""


class _Row(msgspec.Struct):
    """What is known of a host or account: its breaker, if it is not closed, and what failed since its last answer.

    `probe` is set at the end of the attempt that the breaker has admitted; None if none is under way.
    """

    breaker: CircuitBreaker | None = None
    probe: asyncio.Event | None = None
    answered_at: float = -math.inf
    unreached: set[str] = msgspec.field(default_factory=set)

    @property
    def is_unreachable(self) -> bool:
        return len(self.unreached) >= _REPOSITORIES

    def note_answer(self, now: float) -> None:
        """Notes that the host has answered."""
        self.answered_at, self.breaker = now, None
        self.unreached.clear()

    def end_probe(self) -> None:
        """Lets those go on who wait for the attempt's end."""
        if self.probe:
            self.probe.set()
            self.probe = None


class EndpointBreakers:
    """The breakers. One that was open admits one attempt at a time, a probe, until the endpoint answers."""

    def __init__(self, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """As in `CircuitBreaker`."""
        self._clock = clock
        self._random = random
        self._rows: LruTable[Key, _Row] = LruTable(_MOST_ROWS)

    @contextlib.asynccontextmanager
    async def attempt(self, endpoint: Endpoint, account: CredentialId, *, is_last_hope: bool) -> AsyncIterator[None]:
        """Lets the account ask the endpoint in the context's body, whose outcome is recorded.

        `is_last_hope`: no other endpoint is left to ask. Then only the breaker of a host that cannot be reached counts.

        Raises:
            RegistryThrottled: the endpoint has asked this account to come back later.
            RegistryUnavailable: the endpoint has failed lately. Both errors say for how long it is not asked.
        """
        root = str(endpoint.root)
        host, of_account = self._row((root, endpoint.mirror_of, None)), (root, endpoint.mirror_of, account)
        probed: Sequence[_Row] = ()
        if host.breaker or self._rows.get(of_account):
            probed = await self._admit(endpoint, host, of_account, is_last_hope=is_last_hope)
        try:
            yield
        except (RegistryError, InvalidManifest) as exc:
            _count(endpoint, "missing" if isinstance(exc, _DENIALS) else "failed")
            if has_answered(exc):
                self._record_answer(host, of_account)
            else:
                self._record_failure(endpoint, host, of_account, exc, is_last_hope=is_last_hope)
            raise
        else:
            _count(endpoint, "answered")
            self._record_answer(host, of_account)
        finally:
            for row in probed:
                row.end_probe()

    async def _admit(self, endpoint: Endpoint, host: _Row, of_account: Key, *, is_last_hope: bool) -> Sequence[_Row]:
        """Returns what the attempt is the probe of, once there is none under way.

        Who begins while there is one would otherwise fail for as long as that may take. Only who has another endpoint
        to ask does not wait for it.
        """
        while True:
            throttled, failed = self._rows.get(of_account), host if host.is_unreachable or not is_last_hope else None
            rows = [row for row in (throttled, failed) if row and row.breaker]
            probe = next((row.probe for row in rows if row.probe), None)
            for row in rows:
                seconds = row.breaker.wait_seconds() if row.breaker else 0.0
                if seconds or (probe and not is_last_hope):
                    _count(endpoint, "resting")
                    kind = RegistryThrottled if row is throttled else RegistryUnavailable
                    seconds = max(seconds, _LEAST_SECONDS)
                    raise kind(f"{endpoint.name} has failed lately, and is asked again in {seconds:.0f} s", seconds)
            if probe is None:
                break
            await probe.wait()
        for row in rows:
            row.probe = asyncio.Event()
        return rows

    def _record_answer(self, host: _Row, of_account: Key) -> None:
        """Records that the endpoint has answered. That ends no 429 before its time: it may have been asked earlier."""
        host.note_answer(self._clock())
        throttled = self._rows.get(of_account)
        if throttled and throttled.breaker and not throttled.breaker.is_open:
            throttled.breaker = None

    def _record_failure(
        self, endpoint: Endpoint, host: _Row, of_account: Key, error: Failure, *, is_last_hope: bool
    ) -> None:
        """Records what the endpoint has failed with. A 429 without a time backs off like any other failure."""
        if isinstance(error, RegistryThrottled) and not isinstance(error, QuotaReserved):
            host.note_answer(self._clock())
            self._open(of_account, self._row(of_account), error)
        elif _opens_breaker(error):
            has_answered_lately = self._clock() - host.answered_at < _ANSWERED_LATELY_SECONDS
            if isinstance(error, RegistryUnreachable) and not has_answered_lately and not host.is_unreachable:
                host.unreached.add(endpoint.repository)
            if host.is_unreachable or not is_last_hope:
                self._open((*of_account[:2], None), host, error)

    def _row(self, key: Key) -> _Row:
        row = self._rows.get(key)
        if row is None:
            row = _Row()
            self._rows.put(key, row)
        return row

    def _open(self, key: Key, row: _Row, error: RegistryThrottled | RegistryUnavailable) -> None:
        self._rows.put(key, row)  # which may have been evicted during the attempt
        row.breaker = row.breaker or CircuitBreaker(_BACKOFF, clock=self._clock, random=self._random)
        seconds = row.breaker.record_failure(error.retry_after_seconds)
        if seconds is not None:
            root, registry, account = key
            log.info("endpoint.rested", registry=root, of=registry, credential_id=account, seconds=round(seconds, 1),
                     why=str(error))  # fmt: skip


def has_answered(failure: Failure) -> bool:
    """Whether the endpoint answered, which takes little time.

    A 5xx counts as an answer: while its registry is down, distribution's cache answers 500 for content that it lacks
    and still serves content that it has.
    """
    return isinstance(failure, (*REFUSALS, RegistryFailed))


def _opens_breaker(failure: Failure) -> TypeGuard[RegistryUnavailable]:
    """Whether the endpoint is to blame, as for a name that does not resolve; not where we lacked something."""
    if isinstance(failure, NameUnresolved):
        return True
    return isinstance(failure, RegistryUnavailable) and not isinstance(failure, RegistryNotAsked)


def _count(endpoint: Endpoint, outcome: str) -> None:
    if endpoint.mirror_of:
        MIRRORS[outcome].inc()
