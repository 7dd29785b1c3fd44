"""The store in one SQLite file of this machine, used from one thread of its own.

A file that cannot be used is renamed or left alone. It is never repaired, since it is only a cache.
https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from extender.credentials.keyring import CredentialId
from extender.images.reference import PackedDigest
from extender.regular_files import check_regular
from extender.store.rows import (
    SCHEMA,
    Batch,
    NameRow,
    Reason,
    StoreError,
    decode_name,
    encode_name,
)

T = TypeVar("T")

# "MarE". A database of another program lacks it, and is left alone.
_APPLICATION = 0x4D617245
# A replaced row gets the next highest number, so the numbers are the order in which rows were last written.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (
    number INTEGER PRIMARY KEY, repository TEXT NOT NULL, scope TEXT NOT NULL, name NOT NULL, record BLOB NOT NULL,
    UNIQUE (repository, scope, name));
"""
# Rows read at once. Decoding them takes some two milliseconds, during which the event loop does nothing else.
_SLICE = 400
# How long another process may hold a lock before the file counts as locked; only the store's thread waits.
_BUSY_SECONDS = 0.5
_CLOSE_SECONDS = 2.0
_REASONS: dict[int, Reason] = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    # Our own statements are correct, so the tables must have changed.
    sqlite3.SQLITE_ERROR: "corrupt",
    sqlite3.SQLITE_CONSTRAINT: "corrupt",
    sqlite3.SQLITE_MISMATCH: "corrupt",
}


class SqliteStore:
    """A file of at most `size` rows. Beyond that, rows written longest ago are evicted.

    The file is opened on first use, and again after an error. A file that is corrupt or of another schema is renamed
    to `….aside`, where it replaces an earlier one, and a new file is begun.
    """

    is_shared = False

    def __init__(self, path: Path, *, size: int, busy_seconds: float = _BUSY_SECONDS) -> None:
        """`busy_seconds` is how long to wait for another process that has locked the file."""
        self.location = f"sqlite:///{path}"
        self._path = path
        self._size = size
        self._busy_seconds = busy_seconds
        self._thread = ThreadPoolExecutor(1, "store")
        self._opened: sqlite3.Connection | None = None

    async def rows(self) -> AsyncIterator[Sequence[NameRow | None]]:
        """Yields all rows. Those written meanwhile may come twice."""
        after = 0
        while found := await self._run(partial(_read_names, after=after)):
            after = found[-1][0]
            yield [row for _, row in found]

    async def get(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        """Runs one query per credential, some 20 µs each."""
        return await self._run(lambda file: _find_names(file, repository, name, credential_ids))

    async def put(self, batch: Batch) -> None:
        """Runs one transaction, which completes even if the caller is cancelled."""
        await self._run(lambda file: self._write(file, batch))

    async def close(self) -> None:
        """Closes the file after all earlier calls are done. Gives up after two seconds if the disk hangs."""
        with contextlib.suppress(TimeoutError, RuntimeError):  # the disk hangs, or the store was already closed
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    # Everything below runs in the store's thread.

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Returns the result of `work` on the open file. After an error closes the file; the next call reopens it."""
        try:
            self._opened = self._opened or self._open()
            return work(self._opened)
        except (StoreError, sqlite3.Error, OSError, UnicodeDecodeError) as exc:
            self._close()
            raise self._consequence(_translate(exc, self._path)) from exc

    def _consequence(self, error: StoreError) -> StoreError:
        """Returns the error to raise. First renames a file that can never be used again."""
        if error.reason not in ("corrupt", "schema"):
            return error
        aside = self._path.with_name(f"{self._path.name}.aside")
        try:
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):  # they belong to the renamed file; the new one must not use them
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except OSError as exc:
            return _translate(exc, self._path)
        return StoreError(error.reason, f"{error}; it is now {aside}, and a new one is begun")

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.exists():
            check_regular(self._path)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # for our user only, which SQLite would not ensure
        file = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        file.text_factory = _text
        try:
            self._prepare(file)
        except BaseException:
            file.close()
            raise
        return file

    def _prepare(self, file: sqlite3.Connection) -> None:
        file.execute("BEGIN")  # one snapshot of all three: another process may be setting up the file now
        ((application,),) = file.execute("PRAGMA application_id")
        ((version,),) = file.execute("PRAGMA user_version")
        ((objects,),) = file.execute("SELECT count(*) FROM sqlite_schema")
        file.execute("COMMIT")
        if objects and application != _APPLICATION:
            raise StoreError("unwritable", f"{self._path} is a database of something else")
        if objects and version != SCHEMA:
            raise StoreError("schema", f"{self._path} has schema {version}, not {SCHEMA}")
        # NORMAL: a killed process loses nothing it committed; a machine that loses power may lose the last batches.
        file.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE; {_SCHEMA}"
            f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA}; COMMIT;"
        )

    def _write(self, file: sqlite3.Connection, batch: Batch) -> None:
        file.execute("BEGIN IMMEDIATE")
        try:
            file.executemany("DELETE FROM names WHERE repository = ? AND name = ? AND scope = ?", batch.denials)
            file.executemany("REPLACE INTO names (repository, scope, name, record) VALUES (?, ?, ?, ?)", _names(batch))
            file.execute(
                "DELETE FROM names WHERE number <= (SELECT number FROM names ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (self._size,),
            )
            file.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                file.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        file, self._opened = self._opened, None
        if file:
            with contextlib.suppress(sqlite3.Error):
                file.close()


def _names(batch: Batch) -> Iterable[tuple[str, CredentialId, PackedDigest, bytes]]:
    return ((row.repository, row.credential_id, row.name, encode_name(row)) for row in batch.names)


def _find_names(
    file: sqlite3.Connection, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
) -> list[NameRow | None]:
    query = "SELECT record FROM names WHERE repository = ? AND scope = ? AND name = ?"
    return [
        decode_name(repository, name, credential_id, record)
        for credential_id in credential_ids
        for (record,) in file.execute(query, (repository, credential_id, name))
    ]


def _read_names(file: sqlite3.Connection, after: int) -> list[tuple[int, NameRow | None]]:
    query = "SELECT number, repository, name, scope, record FROM names WHERE number > ? ORDER BY number LIMIT ?"
    return [(number, decode_name(*columns)) for number, *columns in _slice(file, query, after)]


def _slice(file: sqlite3.Connection, query: str, after: int) -> list[tuple[Any, ...]]:
    """Returns the next rows by number. Raises StoreError if their numbers do not increase.

    In a damaged file they may lead back to earlier rows, so that the reading would never end.
    """
    rows = file.execute(query, (after, _SLICE)).fetchall()
    numbers = [after, *(number for number, *_ in rows)]
    if any(one >= next_one for one, next_one in pairwise(numbers)):
        raise StoreError("corrupt", "its rows are out of order")
    return rows


def _text(raw: bytes) -> str:
    """Returns the decoded text. Invalid UTF-8 is replaced, and fails its row's checksum instead of the whole query."""
    return raw.decode(errors="replace")


def _translate(error: StoreError | sqlite3.Error | OSError | UnicodeDecodeError, path: Path) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, UnicodeDecodeError):  # from a message of SQLite that quotes damaged text
        return StoreError("corrupt", f"{path}: a text in it is none")
    if isinstance(error, OSError):
        return StoreError("unwritable", f"{path}: {error.strerror}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest are details, https://www.sqlite.org/rescode.html
    return StoreError(_REASONS.get(code, "unwritable"), f"{path}: {error}")
