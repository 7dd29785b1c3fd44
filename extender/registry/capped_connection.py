"""Connections that end when they receive too much: an answer without end, or bodies that are too much together.

Heads, interim answers and framing count towards what an answer may have. Bodies share 48 MiB; above that, the oldest is
aborted, since honest ones take little time.
"""

import asyncio
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

# Real answers have 2 KB of headers, and some 10 KB in one of them.
MOST_HEAD_BYTES = 64 << 10
# Servers send one or two, and each costs as much to read as a final answer. Go's client had this bound up to Go 1.23.
_MOST_INTERIM = 5
# Of a body's framing, and more for each byte of it: chunks of one byte cost five, and servers send kilobytes.
_FRAMING_BYTES, _FRAMING_PER_BYTE = 16 << 10, 0.25
_PIECE_BYTES = 4 << 10  # are parsed before the next look at what has come; a read may have a quarter of a megabyte
_MOST_UNDER_WAY_BYTES = 48 << 20


class AnswerTooLong(aiohttp.ClientPayloadError):
    """The server sent more than an answer may have, besides its body."""


class BodiesUnderWay:
    """How much of bodies that are not complete has been received, by connection, the oldest first."""

    def __init__(self, most_bytes: int = _MOST_UNDER_WAY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes: dict[CappedConnection, int] = {}
        self._total = 0

    def note(self, connection: "CappedConnection", received_bytes: int) -> None:
        """Notes how much of a body has come; ends the oldest ones while all are too much together."""
        self._total += received_bytes - self._bytes.get(connection, 0)
        self._bytes[connection] = received_bytes
        while self._total > self._most_bytes:
            oldest = next(iter(self._bytes))
            self.forget(oldest)
            oldest.give_up()

    def forget(self, connection: "CappedConnection") -> None:
        """Notes that a body is complete, or is not read any more."""
        self._total -= self._bytes.pop(connection, 0)


class CappedConnection(ResponseHandler):
    """aiohttp's connection, which ends when it has received too much."""

    _received_bytes = 0
    _interim_answers = 0
    _body: StreamReader | None = None
    _is_chunked = False

    def __init__(self, loop: asyncio.AbstractEventLoop, bodies: BodiesUnderWay) -> None:
        """`bodies` are those of all connections."""
        super().__init__(loop)
        self._bodies = bodies

    def set_response_params(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Begins to count anew, for the next request."""
        self._received_bytes, self._interim_answers, self._body = 0, 0, None
        self._bodies.forget(self)
        super().set_response_params(**parameters)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Passes an answer on to who waits for it, who drops interim ones."""
        message, body = data
        if 100 <= message.code < 200 and message.code != 101:
            self._interim_answers += 1
        else:
            self._received_bytes, self._body, self._is_chunked = 0, body, message.chunked
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parses what has come, and ends if the answer is too long or wrong. Without data a paused parser goes on."""
        start = 0
        while True:
            # Of heads and chunks little is parsed at once, unless the parser is paused and keeps what comes.
            is_in_pieces = (self._body is None or self._is_chunked) and self._is_reading()
            end = start + _PIECE_BYTES if is_in_pieces else len(data)
            self._take(data[start:end])
            start = end
            if start >= len(data) or self.exception():
                return

    def _is_reading(self) -> bool:
        return self.transport is not None and self.transport.is_reading()

    def _take(self, piece: bytes) -> None:
        self._received_bytes += len(piece)
        super().data_received(piece)
        body = self._body
        if body and body.is_eof():
            self._bodies.forget(self)
        elif self.exception():  # of the framing, which aiohttp does not report to who reads the body
            self._fail(aiohttp.ClientPayloadError("the body's framing is wrong"))
        elif self._interim_answers > _MOST_INTERIM or (
            self._is_reading() and self._received_bytes > self._most_bytes(body)
        ):
            self.give_up()
        elif body:
            self._bodies.note(self, self._received_bytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends."""
        self._bodies.forget(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Ends at once, when nobody reads the answer any more: asyncio gives a peer 30 s to agree to the end of TLS."""
        self._bodies.forget(self)
        super().abort()

    def _most_bytes(self, body: StreamReader | None) -> float:
        return _FRAMING_BYTES + (1 + _FRAMING_PER_BYTE) * body.total_bytes if body else MOST_HEAD_BYTES

    def give_up(self) -> None:
        """Ends with an error for whoever waits for the answer."""
        self._fail(AnswerTooLong("the answer is too long"))

    def _fail(self, error: Exception) -> None:
        self._bodies.forget(self)
        self.set_exception(error)
        if self._body:
            self._body.set_exception(error)
        if self.transport:
            self.transport.abort()
