"""What rests: the hosts, mirrors and accounts that failed and are not asked for a while, in one table.

Blame has to be certain, since whoever creates pods chooses the names that fail. A 429 rests its account at its host. A
host rests when no connection to it comes about. A mirror rests for one registry after any failure, as long as another
endpoint can be asked instead: a registry that hangs makes its mirrors hang. An answer, a 5xx too, rests nothing.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import TypeGuard

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
from extender.tables import LruTable

log = structlog.get_logger()

_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# Repositories of a host, one after the other, to which no connection comes about before the host rests for everybody.
_REPOSITORIES = 3
# A host that has answered so lately does not rest, whatever fails there: somebody gets what is asked for.
_ANSWERED_LATELY_SECONDS = 10.0
_LEAST_SECONDS = 1.0  # until whoever was refused asks again, as after a Retry-After
# A row takes some 500 bytes, and every host that images name has one.
_MOST_ROWS = 2048

Failure = RegistryError | InvalidManifest
REFUSALS = (ManifestNotFound, RegistryDenied, RegistryRefusedImage, InvalidManifest)

Key = tuple[str, str, CredentialId | None]
"""The root of an endpoint, the registry that it mirrors or nothing, and the account there or None for all of them."""


class _Row:
    """What is known of a host or account: its breaker, if it is not closed, and what failed since its last answer.

    `outcome` is set when the attempt that a breaker has let through has an outcome.
    """

    __slots__ = ("answered_at", "breaker", "outcome", "unreached")

    def __init__(self) -> None:
        self.breaker: CircuitBreaker | None = None
        self.outcome: asyncio.Event | None = None
        self.answered_at = -math.inf
        self.unreached: set[str] = set()

    @property
    def is_unreachable(self) -> bool:
        return len(self.unreached) >= _REPOSITORIES


class Rests:
    """What rests, until when. After its time one attempt is let through, and another each `probe_seconds`."""

    def __init__(self, *, probe_seconds: float, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """As in `CircuitBreaker`."""
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rows: LruTable[Key, _Row] = LruTable(_MOST_ROWS)

    async def wait_for_attempt(self, endpoint: Endpoint, account: CredentialId) -> None:
        """Returns when the attempt has an outcome that finds out whether a rest is over, or when that is late.

        Who begins in these moments would otherwise fail for as long as the attempt may take.
        """
        for row in filter(None, map(self._rows.get, _keys(endpoint, account))):
            if row.breaker and row.outcome and not row.breaker.is_open and (seconds := row.breaker.wait_seconds()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await row.outcome.wait()

    def admit(self, endpoint: Endpoint, account: CredentialId, *, is_last_hope: bool) -> None:
        """Returns if the account may ask the endpoint now.

        `is_last_hope`: no other endpoint is left to ask. Then only a host that cannot be reached rests.

        Raises:
            RegistryThrottled: the endpoint has asked this account to come back later.
            RegistryUnavailable: the endpoint has failed lately. Both errors say for how long it is not asked.
        """
        of_endpoint, of_account = _keys(endpoint, account)
        throttled = self._breaker(of_account)
        if throttled and (seconds := throttled.wait_seconds()):
            raise RegistryThrottled(_words(endpoint, seconds), max(seconds, _LEAST_SECONDS))
        failed = self._breaker(of_endpoint, is_last_hope=is_last_hope)
        if failed and (seconds := failed.wait_seconds()):
            raise RegistryUnavailable(_words(endpoint, seconds), max(seconds, _LEAST_SECONDS))
        for breaker in filter(None, (throttled, failed)):
            breaker.admit()
        for row in filter(None, map(self._rows.get, (of_endpoint, of_account))):
            if row.breaker:
                row.outcome = asyncio.Event()

    def record_answer(self, endpoint: Endpoint, account: CredentialId) -> None:
        """Records that the endpoint has answered. That ends no 429 before its time: it may have been asked earlier."""
        of_endpoint, of_account = _keys(endpoint, account)
        self._note_outcome(of_endpoint, of_account)
        self._record_host_answer(of_endpoint)
        throttled = self._breaker(of_account)
        if throttled and not throttled.is_open:
            self._rows.remove(of_account)

    def record_failure(self, endpoint: Endpoint, account: CredentialId, error: Failure, *, is_last_hope: bool) -> None:
        """Records what the endpoint has failed with. A 429 without a time backs off like any other failure."""
        if has_answered(error):
            self.record_answer(endpoint, account)
            return
        of_endpoint, of_account = _keys(endpoint, account)
        self._note_outcome(of_endpoint, of_account)
        if not _rests_somebody(error):
            return
        if isinstance(error, RegistryThrottled):
            self._record_host_answer(of_endpoint)
            self._rest(of_account, self._row(of_account), error)
            return
        row = self._row(of_endpoint)
        has_answered_lately = self._clock() - row.answered_at < _ANSWERED_LATELY_SECONDS
        if isinstance(error, RegistryUnreachable) and not has_answered_lately and not row.is_unreachable:
            row.unreached.add(endpoint.repository)
        if row.is_unreachable or not is_last_hope:
            self._rest(of_endpoint, row, error)

    def _note_outcome(self, *keys: Key) -> None:
        for row in filter(None, map(self._rows.get, keys)):
            if row.outcome:
                row.outcome.set()

    def _breaker(self, key: Key, *, is_last_hope: bool = False) -> CircuitBreaker | None:
        row = self._rows.get(key)
        return row.breaker if row and (row.is_unreachable or not is_last_hope) else None

    def _row(self, key: Key) -> _Row:
        row = self._rows.get(key)
        if row is None:
            row = _Row()
            self._rows.put(key, row)
        return row

    def _record_host_answer(self, key: Key) -> None:
        row = self._row(key)
        row.answered_at = self._clock()
        row.unreached.clear()
        row.breaker = None

    def _rest(self, key: Key, row: _Row, error: RegistryThrottled | RegistryUnavailable) -> None:
        row.breaker = row.breaker or CircuitBreaker(
            _BACKOFF, clock=self._clock, random=self._random, probe_seconds=self._probe_seconds
        )
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


def _rests_somebody(failure: Failure) -> TypeGuard[RegistryThrottled | RegistryUnavailable]:
    """Whether a mirror rests, as for a name that does not resolve; not for what was not asked, for want of ours."""
    if isinstance(failure, NameUnresolved):
        return True
    is_failure = isinstance(failure, (RegistryThrottled, RegistryUnavailable))
    return is_failure and not isinstance(failure, (RegistryNotAsked, QuotaReserved))


def _words(endpoint: Endpoint, seconds: float) -> str:
    return f"{endpoint.name} has failed lately, and is asked again in {seconds:.0f} s"


def _keys(endpoint: Endpoint, account: CredentialId) -> tuple[Key, Key]:
    """Returns the keys of the endpoint's row and of its account's."""
    root = str(endpoint.root)
    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, account)
