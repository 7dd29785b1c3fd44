"""A connection that gives up on an answer of more bytes than an answer may have.

Limits what a server can send besides the body that `transport` limits: interim answers, headers, chunks' framing. All
bodies under way together are limited too: the one that takes longest gives way, since honest ones take little time.
"""

import asyncio
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

# A header has 8 KB at most, and real answers have 2 KB of them. Interim answers before the final one count too.
MOST_HEAD_BYTES = 64 << 10
# Bytes besides the body, and for each byte of the body: chunks of one byte cost five more, and servers send kilobytes.
# What is read at once counts before its body does, which is a quarter of a megabyte at most.
_FRAMING_BYTES, _FRAMING_PER_BYTE = 512 << 10, 2
_MOST_UNDER_WAY_BYTES = 48 << 20
_PIECE_BYTES = 16 << 10  # what is parsed at once of a head, since a parser makes an object of each interim answer


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
    """aiohttp's connection, which drops interim answers and ends when it has received too much for one request."""

    _received_bytes = 0
    _body: StreamReader | None = None
    _has_head = False

    def __init__(self, loop: asyncio.AbstractEventLoop, bodies: BodiesUnderWay) -> None:
        """`bodies` are those of all connections."""
        super().__init__(loop)
        self._bodies = bodies

    def set_response_params(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Begins to count anew, for the next request."""
        self._received_bytes, self._body, self._has_head = 0, None, False
        self._bodies.forget(self)
        super().set_response_params(**parameters)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Passes the final answer on: nobody waits for one that says `100 Continue` or gives early hints."""
        message, body = data
        if 100 <= message.code < 200 and message.code != 101:
            return
        self._has_head, self._body = True, body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parses what has come, unless it is too much. Nothing comes when a paused parser is to go on."""
        if not data:
            super().data_received(data)
            return
        while data and not self._has_head:
            piece, data = data[:_PIECE_BYTES], data[_PIECE_BYTES:]
            self._received_bytes += len(piece)
            super().data_received(piece)
            if self._received_bytes > MOST_HEAD_BYTES and not self._has_head:
                self.give_up()
                return
        if data:
            self._received_bytes += len(data)
            super().data_received(data)
        body = self._body
        if body is None:
            return
        if self._received_bytes > self._most_bytes(body):
            self.give_up()
        elif body.is_eof():
            self._bodies.forget(self)
        else:
            self._bodies.note(self, max(self._received_bytes, body.total_bytes))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends."""
        self._bodies.forget(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Ends, when nobody reads the answer any more."""
        self._bodies.forget(self)
        super().close()

    def _most_bytes(self, body: StreamReader) -> int:
        return MOST_HEAD_BYTES + _FRAMING_BYTES + _FRAMING_PER_BYTE * body.total_bytes

    def give_up(self) -> None:
        """Ends with an error for whoever waits for the answer."""
        self._bodies.forget(self)
        error = AnswerTooLong("the answer is too long")
        self.set_exception(error)
        if self._body:
            self._body.set_exception(error)
        if self.transport:
            self.transport.abort()
