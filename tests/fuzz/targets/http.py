"""Bytes of a connection to the hot paths: what is answered here, and what aiohttp's own connection answers.

A request may be answered on the short way only if aiohttp would frame it in the same way: whoever stands in front of
the service must not be able to smuggle a second request past it.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from extender.errors import InvalidRequest
from extender.server.connection import Connections, Limits, count_answers
from extender.server.routes import FastConnection, FastServer, Reply, Route, route_server
from tests.fuzz.target import Target, at_end, run, settle

PATH = "/scheduler/filter"
LIMIT_BYTES = 300
SETTLED = 1  # the lowest bit of the first byte; those above the second give the length of pieces


class _Wire(asyncio.Transport):
    """A connection's other end, which takes all that is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closed:
            self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None:
        """All has been read already."""

    def resume_reading(self) -> None:
        """As `pause_reading`."""

    def is_reading(self) -> bool:
        return not self.is_closed


class _Exchange:
    """One side, for one connection at a time: the requests that reached the handler, and what was written."""

    def __init__(self, make: Callable[[FastServer], FastConnection], *, is_direct: bool) -> None:
        """`make` makes a connection. Call this on a running loop."""
        self.seen: list[bytes] = []
        self.wire = _Wire()
        self._make = make
        self._is_direct = is_direct
        route = Route("filter", self._answer, lambda _body, _event_id: b"{}", self._answer_nowait)
        self._server = route_server({PATH: route}, body_limit_bytes=LIMIT_BYTES, draining=lambda: False)
        count_answers(self._server)

    async def _answer(self, body: bytes) -> Reply:
        return self._reply(body)

    def _answer_nowait(self, body: bytes) -> Reply | None:
        if not self._is_direct or body.startswith(b"w"):
            return None
        return self._reply(body)

    def _reply(self, body: bytes) -> Reply:
        if body.startswith(b"x"):
            raise InvalidRequest("an x")
        self.seen.append(body)
        return Reply(b'"%d"' % len(body))

    async def play(self, pieces: list[bytes], flags: int) -> None:
        """Sends the pieces over a new connection, and hangs up. What was counted of its requests is given back."""
        self.seen, self.wire = [], _Wire()
        connection = self._make(self._server)
        connection.connection_made(self.wire)
        for piece in pieces:
            if self.wire.is_closed:
                break
            connection.data_received(piece)
            if flags & SETTLED:
                await settle(6)
        await settle(12)
        connection.connection_lost(None)
        await settle(6)
        assert connection.connections.pending_bytes == 0


def _connect(server: FastServer) -> FastConnection:
    return FastConnection(server, Connections(Limits(), asyncio.get_running_loop().time))


def _connect_aiohttp(server: FastServer) -> FastConnection:
    """A connection that leaves each byte to aiohttp."""
    connection = _connect(server)
    connection._is_aiohttps = True  # noqa: SLF001
    return connection


class _Sides(NamedTuple):
    direct: _Exchange
    alone: _Exchange


@functools.cache
def _sides() -> _Sides:
    """The service's own connection, and aiohttp's."""

    async def make() -> _Sides:
        return _Sides(_Exchange(_connect, is_direct=True), _Exchange(_connect_aiohttp, is_direct=False))

    at_end(_sides.cache_clear)
    return run(make())


def answers_in(written: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
    """Yields status and body of each answer. Fails unless the bytes are whole answers."""
    written = bytes(written)
    while written:
        head, end, written = written.partition(b"\r\n\r\n")
        assert end, head
        status_line, *fields = head.split(b"\r\n")
        version, status, *_ = status_line.split(b" ")
        assert version.startswith(b"HTTP/"), head
        if status == b"100":
            continue
        lengths = [field for field in fields if field.lower().startswith(b"content-length:")]
        assert len(lengths) == 1, head
        length = int(lengths[0].partition(b":")[2])
        body, written = written[:length], written[length:]
        assert len(body) == length
        yield int(status), body


def connections(data: bytes) -> None:
    """The first byte says how the others are cut into pieces. Both ways see the same requests and answer them alike."""
    flags = data[0] if data else 0
    length = flags >> 2 or len(data) + 1
    pieces = [data[start : start + length] for start in range(1, len(data), length)]
    direct, alone = _sides()
    run(direct.play(pieces, flags))
    run(alone.play(pieces, flags))
    ours, theirs = list(answers_in(direct.wire.written)), list(answers_in(alone.wire.written))
    assert direct.seen == alone.seen, (direct.seen, alone.seen)
    assert [status for status, _ in ours] == [status for status, _ in theirs], (ours, theirs)
    assert [body for status, body in ours if status == 200] == [body for status, body in theirs if status == 200]
    assert sum(status == 200 for status, _ in ours) <= len(direct.seen)
    assert direct.wire.is_closed == alone.wire.is_closed


TARGETS = (
    Target(
        "connections", connections,
        (
            b"POST /scheduler/filter HTTP/1.1\r\n", b"POST ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"\r\n\r\n",
            b"\r\n", b"\n",
            b"Host: x\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n",
            b"User-Agent: Go-http-client/1.1\r\n", b"Accept-Encoding: gzip\r\n", b"Content-Type: application/json\r\n",
            b"Content-Encoding: gzip\r\n", b"?timeout=1s", b"0\r\n\r\n", b"5\r\nhello\r\n", b"+5", b" 5", b"5, 5",
            b"\t",
            b"%66", b"#", b"Traceparent: 00-0\r\n", b"Trailer: x\r\n", b"GET ", b"\x00", b"\x0b", b"\xc3\xa9", b"wait",
        ),
        2048,
    ),
)  # fmt: skip
