"""What the API server and a store give: lists, the lines of watches, and rows."""

import asyncio
import functools
import math
import sqlite3
import tempfile
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from extender.cluster.listwatch import Handler, ListWatch, Resource
from extender.cluster.views import NAMESPACES, NODES, NamespaceView, WatchedNodes
from extender.credentials.keyring import CredentialId
from extender.images.reference import digest_of, pack_digest
from extender.store.redis import RedisServer, RedisStore
from extender.store.rows import Batch, NameRow, decode_name, encode_name
from extender.store.sqlite import SqliteStore
from testbed.clock import Clock
from tests.fuzz.target import at_end, run
from tests.unit.resolver.fake_registry import index_of

REPOSITORY, NAME, OWNER = "quay.io/team/app", "v1", CredentialId("anonymous")
PACKED = pack_digest(digest_of(b"x"))
ROW = NameRow(REPOSITORY, NAME, OWNER, PACKED, index_of("linux/amd64", "linux/arm64"), 1.5e9)
NAME_KEY = f"{REPOSITORY}\n{NAME}\n{OWNER}\n"


class _Stopped(Exception):
    """Ends a watch that would go on for ever."""


class _Lines:
    """An API server that lists this page, and then streams these lines."""

    def __init__(self, page: bytes, lines: Sequence[bytes]) -> None:
        self._page, self._lines = page, lines

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "") -> bytes:
        page, self._page = self._page, b'{"items":[]}'
        return page

    async def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "", stall_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        for line in self._lines:
            yield line


async def _stop(_delay_seconds: float) -> None:
    raise _Stopped


async def _watch(resource: Resource, handler: Handler, api_server: _Lines) -> None:
    watch = ListWatch(api_server, resource, handler, clock=Clock(), random=lambda: 0.5, sleep=_stop)
    try:
        await watch.run()
    except _Stopped:
        assert watch.age_seconds() == 0.0


def watches(data: bytes) -> None:
    """The first line is a list, the others those of a watch; nodes and namespaces are kept from them.

    Whatever they say, the watch ends with nothing but an error of the cluster, after which it would be opened again.
    """
    page, *lines = data.split(b"\n")
    nodes = WatchedNodes(_Lines(page, ()), clock=Clock(), random=lambda: 0.5)
    run(_watch(NODES, nodes, _Lines(page, lines)))
    assert len(nodes.platforms) <= data.count(b"{")
    for name, platform in nodes.platforms.items():
        assert name
        assert platform is None or (platform.os and platform.architecture)
    namespaces = NamespaceView()
    run(_watch(NAMESPACES, namespaces, _Lines(page, lines)))
    namespaces.annotations_of("shop")


def sealed(body: bytes, key: str) -> bytes:
    """A record whose checksum is right, so that its body is read."""
    return zlib.crc32(body, zlib.crc32(key.encode())).to_bytes(4, "big") + body


def _check_row(row: NameRow | None) -> None:
    if row is None:
        return
    for platform in row.content.platforms:
        assert all(isinstance(word, str) for word in (platform.os, platform.architecture, platform.variant))
    assert math.isfinite(row.confirmed_at)
    assert decode_name(row.repository, row.name, row.credential_id, encode_name(row)) == row


def rows(data: bytes) -> None:
    """A record is a row that is the same after it is written again, or damaged."""
    for record in (data, sealed(data, NAME_KEY)):
        _check_row(decode_name(REPOSITORY, NAME, OWNER, record))


class _Database:
    """An SQLite store in a folder of its own, with one row, whose record an input replaces."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.path = Path(self._folder.name) / "images.db"
        self.store = SqliteStore(self.path, size=10)
        run(self.store.put(Batch([ROW], {})))

    def close(self) -> None:
        run(self.store.close())
        self._folder.cleanup()

    def replace(self, record: bytes) -> None:
        """Writes the record as another process would."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous = OFF")
            file.execute("UPDATE names SET record = ?", (record,))


class _Redis:
    """A server that has `record` under every key, and a store that asks it."""

    def __init__(self) -> None:
        self.record = b""
        self._server = run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.store = RedisStore(lambda: RedisServer(host="127.0.0.1", port=port), keep_seconds=60)

    def close(self) -> None:
        run(self.store.close())
        self._server.close()
        run(self._server.wait_closed())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while words := await _read_command(reader):
            kind, keys = words[0].upper(), words[1:]
            bulk = b"$%d\r\n%b\r\n" % (len(self.record), self.record)
            many = b"*%d\r\n%b" % (len(keys), bulk * len(keys))
            writer.write(many if kind == b"MGET" else b"+OK\r\n")
        writer.close()


@functools.cache
def _both() -> tuple[_Database, _Redis]:
    found = _Database(), _Redis()
    for ending in (_both.cache_clear, *(each.close for each in found)):
        at_end(ending)
    return found


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    line = await reader.readline()
    words = []
    for _ in range(int(line[1:] or b"0")):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:length])
    return words


def stores(data: bytes) -> None:
    """Both stores with such records in them: SQLite's file, and a server that speaks Redis' protocol."""
    database, redis = _both()
    database.replace(sealed(data, NAME_KEY))
    run(_read_store(database.store))
    for redis.record in (data, sealed(data, NAME_KEY)):
        for row in run(redis.store.get(REPOSITORY, NAME, [OWNER])):
            _check_row(row)


async def _read_store(store: SqliteStore) -> None:
    found = [*await store.get(REPOSITORY, NAME, [OWNER])]
    async for some in store.rows():
        found += some
    assert len(found) == 2
    for row in found:
        _check_row(row)


TARGETS = (watches, rows, stores)
