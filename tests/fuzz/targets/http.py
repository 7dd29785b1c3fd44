"""Bytes of a connection to the hot paths: what is answered here, and what aiohttp alone would answer.

A usual request may be answered here only if aiohttp would frame it in the same way: whoever stands in front of the
service must not be able to smuggle a second request past it.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator

from aiohttp import web

from extender.errors import InvalidRequest
from extender.server.http import Connection, Limits, Listener
from extender.server.routes import PostRoutes, Reply, Route
from tests.fuzz.target import at_end, run, settle

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

    def is_reading(self) -> bool:
        return not self.is_closed


class _Exchange:
    """One side, for one connection at a time: the requests that reached the service, and what was written."""

    def __init__(self, make: Callable[[PostRoutes], asyncio.Protocol]) -> None:
        """`make` makes a connection. Call this on a running loop."""
        self.seen: list[bytes] = []
        self.wire = _Wire()
        self.is_closed = False  # before the client hung up
        self._make = make
        route = Route("filter", self._answer, lambda _body, _event_id: b"{}")
        self._routes = PostRoutes({PATH: route}, draining=lambda: False, token_bytes=bytes)

    async def _answer(self, body: bytes) -> Reply:
        if body.startswith(b"w"):
            await asyncio.sleep(0)
        if body.startswith(b"x"):
            raise InvalidRequest("an x")
        self.seen.append(body)
        return Reply(b'"%d"' % len(body))

    async def play(self, pieces: list[bytes], flags: int) -> None:
        """Sends the pieces over a new connection, and hangs up. What was counted of its requests is given back."""
        self.seen, self.wire = [], _Wire()
        connection = self._make(self._routes)
        connection.connection_made(self.wire)
        for piece in pieces:
            if self.wire.is_closed:
                break
            connection.data_received(piece)
            if flags & SETTLED:
                await settle(6)
        await settle(12)
        self.is_closed = self.wire.is_closed
        connection.connection_lost(None)
        await settle(6)
        assert not isinstance(connection, Connection) or not connection.pending_bytes


def _connect(routes: PostRoutes) -> Connection:
    return Connection(Listener("scheduler", routes, Limits(body_bytes=LIMIT_BYTES)))


def _connect_aiohttp(routes: PostRoutes) -> web.RequestHandler:
    """A connection that leaves each byte to aiohttp."""

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await _read(request)
        response = web.Response(status=body) if isinstance(body, int) else await routes.respond(request, body)
        if not request.content.is_eof():
            response.force_close()
        return response

    return web.Server(handle, access_log=None, auto_decompress=False)()


async def _read(request: web.BaseRequest) -> bytes | int:
    """The body, or the status of the refusal of one that cannot be read."""
    body = b""
    try:
        while (request.content_length or len(body)) <= LIMIT_BYTES:
            if not (piece := await request.content.readany()):
                return body
            body += piece
    except (web.RequestPayloadError, ConnectionError):
        return 400
    return 413


@functools.cache
def _sides() -> tuple[_Exchange, _Exchange]:
    """The service's own connection, and aiohttp's."""

    async def make() -> tuple[_Exchange, _Exchange]:
        return _Exchange(_connect), _Exchange(_connect_aiohttp)

    at_end(_sides.cache_clear)
    return run(make())


def answers_in(written: bytes | bytearray) -> Iterator[tuple[int, bytes, bool]]:
    """Yields status, the body of 200, and whether it ends the connection. Fails unless these are whole answers."""
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
        said = next((field.lower() for field in fields if field.lower().startswith(b"connection:")), b"")
        ends = b"close" in said or (version != b"HTTP/1.1" and b"keep-alive" not in said)
        yield int(status), body if status == b"200" else b"", ends


def connections(data: bytes) -> None:
    """The first byte says how the others are cut into pieces.

    The service answers what aiohttp alone would answer, or the first answers of that if it ends the connection.
    """
    flags = data[0] if data else 0
    length = flags >> 2 or len(data) + 1
    pieces = [data[start : start + length] for start in range(1, len(data), length)]
    service, aiohttp = _sides()
    run(service.play(pieces, flags))
    run(aiohttp.play(pieces, flags))
    ours, theirs = list(answers_in(service.wire.written)), list(answers_in(aiohttp.wire.written))
    assert service.seen == aiohttp.seen[: len(service.seen)], (service.seen, aiohttp.seen)
    assert [each[:2] for each in ours] == [each[:2] for each in theirs[: len(ours)]], (ours, theirs)
    assert sum(status == 200 for status, *_ in ours) <= len(service.seen)
    if ours and ours[-1][2]:
        return
    assert len(ours) == len(theirs), (ours, theirs)
    assert service.seen == aiohttp.seen
    assert service.is_closed == aiohttp.is_closed


TARGETS = (connections,)
