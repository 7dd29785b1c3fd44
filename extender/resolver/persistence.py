"""Keeps the image cache across restarts: writes its changes to the store in batches, and reads rows back.

This file decides when the store is read and which rows may be kept. A failing store costs time, never an answer. Rows
hold wall-clock times, which are converted from and to monotonic time here. `extender.store` has the stores themselves.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog

from extender.background import end_background, start_background
from extender.circuit_breaker import Backoff, CircuitBreaker
from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.metrics import counter
from extender.resolver.image_cache import CachedImage, NameKey, Target, content_bytes
from extender.store.rows import Batch, NameRow, Store, StoreError
from extender.tables import LruTable

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

log = structlog.get_logger()

ROWS = counter(
    "multiarch_store_rows_total",
    "Rows of the store: loaded at start, written, dropped, damaged; asked for: hit, miss, error.",
    "event",
    ("loaded", "written", "dropped", "damaged", "hit", "miss", "error"),
)
ERRORS = counter(
    "multiarch_store_errors_total",
    "Failures of the store, by reason; answers do not fail.",
    "reason",
    ("corrupt", "locked", "schema", "timeout", "unavailable", "unwritable"),
)

_WRITE_SECONDS = 10.0
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)
_DAMAGE_LOG_SECONDS = 60.0
# Rows loaded before the event loop may do something else: 3 ms of work for the largest rows, 1 ms for ordinary ones.
_ROWS_AT_ONCE = 100
# What a content may take in memory besides its row: as much as an ordinary one with seven unusual platforms. That is
# less, when encoded, than what a store reads. 2,500 waiting rows take 10 MB at most.
_MOST_CONTENT_BYTES = 3_072


class PersistenceLimits(NamedTuple):
    """Time limits for the store, and bounds for the rows that wait for it."""

    read_seconds: float = 0.2
    """How long a lookup waits for the store; a registry's answer takes about as long."""
    gather_seconds: float = 0.25
    """How long a new row waits for others to be written with. A crash loses these rows and those being written."""
    close_seconds: float = 2.0
    """How long `close` may write the rows that still wait."""
    batch_rows: int = 1_000
    """Rows in one write."""
    most_waiting: int = 2_500
    """Rows that wait while the store cannot be written, of 300 bytes to 4 KB; beyond that the oldest are dropped."""


class Persistence:
    """Reads and writes the store for the resolver. A store's errors are never raised.

    Rows learned with a login are kept only with `persist_private`: unless a file keys the credential ids, the next
    process cannot match them. `clock` gives monotonic seconds, `wall_clock` seconds since the epoch; all times in
    arguments and results are by `clock`. If the wall clock was set back, a row looks as if it was confirmed just now
    and is confirmed again that much later. A store that is full may still be read, so each has a breaker of its own.
    """

    def __init__(
        self,
        store: Store,
        *,
        persist_private: bool = False,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        limits: PersistenceLimits = PersistenceLimits(),  # noqa: B008 -- it is frozen
    ) -> None:
        self._store = store
        self._context = contextvars.copy_context()
        self._is_closed = False
        self._persist_private = persist_private
        self._clock = clock
        self._wall_clock = wall_clock
        self._limits = limits
        self._reads, self._writes = (CircuitBreaker(_BACKOFF, clock=clock, random=lambda: 0.0) for _ in range(2))
        self._writing = asyncio.Lock()
        self._names: LruTable[NameKey, CachedImage] = LruTable(limits.most_waiting)
        self._denials: LruTable[NameKey, float] = LruTable(limits.most_waiting)
        self._changed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._is_loaded = False
        self._unlogged_damage, self._damage_loggable_at = 0, clock()

    def note(self, key: NameKey, known: CachedImage) -> None:
        """Queues the name's row to be written, unless its content is large. Takes a few microseconds."""
        is_large = content_bytes(known.content) > _MOST_CONTENT_BYTES  # such images are looked up after a restart
        if self._may_keep(key[2]) and not is_large:
            ROWS["dropped"].inc(self._names.put(key, known))
            self._wake()

    def note_denial(self, key: NameKey, at: float) -> None:
        """Queues a denial: it voids the store's row of the name confirmed up to `at`."""
        if self._may_keep(key[2]):
            ROWS["dropped"].inc(self._denials.put(key, at))
            self._wake()

    def may_know(self, credential_ids: Iterable[CredentialId]) -> bool:
        """Whether the store may have rows for these credentials that the cache lacks, and can be read now."""
        if self._is_closed or self._reads.wait_seconds() or (self._is_loaded and not self._store.is_shared):
            return False
        return any(map(self._may_keep, credential_ids))

    async def find(self, target: Target, credential_ids: Iterable[CredentialId]) -> list[tuple[NameKey, CachedImage]]:
        """The store's rows of the target for these credentials; none if the store fails or takes too long."""
        kept = [credential_id for credential_id in credential_ids if self._may_keep(credential_id)]
        if not self.may_know(kept) or self._reads.is_open:
            return []
        work = self._store.get(target.repository, target.name, kept)
        found = await self._attempt("reading", self._reads, work, self._limits.read_seconds)
        ROWS["error" if found is None else "hit" if any(found) else "miss"].inc()
        return self._names_in(found or ())

    async def load(self, load: Callable[[NameKey, CachedImage], None]) -> None:
        """Calls `load` for all rows, least recently written first. Skips a shared store."""
        if self._store.is_shared:
            return
        slices = self._store.rows()
        end: Sequence[NameRow | None] = []
        while True:  # the failure of another read does not end this load
            rows = await self._attempt("reading", self._reads, anext(slices, end), _WRITE_SECONDS)
            if rows is None:  # a failure: lookups then read their rows one by one
                break
            if rows is end:
                self._is_loaded = True
                break
            for first in range(0, len(rows), _ROWS_AT_ONCE):
                for key, known in self._names_in(rows[first : first + _ROWS_AT_ONCE]):
                    load(key, known)
                await asyncio.sleep(0)
            ROWS["loaded"].inc(len(rows))

    async def flush(self) -> None:
        """Writes all waiting rows, until the store fails or its breaker refuses."""
        async with self._writing:
            while self._names or self._denials:
                if self._writes.is_open or not await self._write_batch():
                    return
            self._changed.clear()

    async def close(self) -> None:
        """Writes the waiting rows for two seconds at most, and closes the store."""
        if self._writer:
            await end_background(self._writer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_seconds):
                await self.flush()
        self._is_closed = True
        await self._store.close()

    def _may_keep(self, credential_id: CredentialId) -> bool:
        return self._persist_private or credential_id == ANONYMOUS.id

    def _wake(self) -> None:
        self._changed.set()
        if self._writer is None and not self._is_closed:
            self._writer = start_background(self._write_behind(), "store", self._context.copy())

    async def _write_behind(self) -> None:
        while True:
            await self._changed.wait()
            if not self._denials:  # denials are written without delay: a crash must not make denied rows valid again
                await asyncio.sleep(self._limits.gather_seconds)
            await self.flush()
            await asyncio.sleep(self._writes.wait_seconds())

    async def _write_batch(self) -> bool:
        """Writes the oldest waiting rows and all denials. Returns whether that succeeded; if not, they keep waiting."""
        denials = dict(self._denials.items())
        if denials:
            self._names.remove_where(self._is_denied)
        names = dict(islice(self._names.items(), self._limits.batch_rows))
        work = _write(self._store, self._batch_of(names, denials))
        written = await self._attempt("writing", self._writes, work, _WRITE_SECONDS) is True
        if written:
            ROWS["written"].inc(len(names))
            _remove_unchanged(self._names, names)
            _remove_unchanged(self._denials, denials)
        return written

    def _batch_of(self, names: dict[NameKey, CachedImage], denials: dict[NameKey, float]) -> Batch:
        ahead = self._wall_clock() - self._clock()
        return Batch(
            [NameRow(*key, known.packed, known.content, known.confirmed_at + ahead) for key, known in names.items()],
            {key: at + ahead for key, at in denials.items()},
        )

    async def _attempt(self, doing: str, breaker: CircuitBreaker, work: Awaitable[T], seconds: float) -> T | None:
        """The result of `work`; None if it fails or times out, which is logged once until all is well again."""
        try:
            async with asyncio.timeout(seconds):
                outcome = await work
        except TimeoutError:
            error = StoreError("timeout", "no answer in time")
        except StoreError as exc:
            error = exc
        except Exception:  # a defect of ours or of a client library must not end a lookup
            log.exception("store.crashed")
            error = StoreError("unavailable", "it met an error that is none of its own")
        else:
            was_failing = self._is_failing
            breaker.record_success()
            if was_failing and not self._is_failing:
                log.info("store.recovered", store=self._store.location)
            return outcome
        ERRORS[error.reason].inc()
        if not self._is_failing:
            log.warning("store.failed", store=self._store.location, doing=doing, reason=error.reason, detail=str(error))
        breaker.record_failure()
        return None

    @property
    def _is_failing(self) -> bool:
        return bool(self._reads.failures or self._writes.failures)

    def _names_in(self, rows: Sequence[NameRow | None]) -> list[tuple[NameKey, CachedImage]]:
        """The rows about names as the cache keeps them, without those that may not be kept or are denied."""
        now, ahead = self._clock(), self._wall_clock() - self._clock()
        self._note_damage(rows)
        found = [
            (
                (row.repository, row.name, row.credential_id),
                CachedImage(row.content, row.packed, min(now, row.confirmed_at - ahead)),
            )
            for row in rows
            if row and self._may_keep(row.credential_id)
        ]
        return [(key, known) for key, known in found if not self._is_denied(key, known)]

    def _note_damage(self, rows: Sequence[NameRow | None]) -> None:
        """Counts damaged rows. Logs how many there were, at most once a minute."""
        damaged = sum(row is None for row in rows)
        if not damaged:
            return
        ROWS["damaged"].inc(damaged)
        self._unlogged_damage += damaged
        if self._clock() >= self._damage_loggable_at:
            log.warning("store.damaged", store=self._store.location, rows=self._unlogged_damage)
            self._unlogged_damage, self._damage_loggable_at = 0, self._clock() + _DAMAGE_LOG_SECONDS

    def _is_denied(self, key: NameKey, known: CachedImage) -> bool:
        denied_at = self._denials.peek(key)
        return denied_at is not None and known.confirmed_at <= denied_at


def _remove_unchanged(waiting: LruTable[K, V], written: dict[K, V]) -> None:
    """Removes the rows that were written, except those that were replaced meanwhile."""
    for key, value in written.items():
        if waiting.peek(key) is value:
            waiting.remove(key)


async def _write(store: Store, batch: Batch) -> bool:
    await store.put(batch)
    return True
