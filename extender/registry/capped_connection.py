"""A connection that gives up on an answer of more bytes than an answer may have.

Limits what a server can send besides the body that `transport` limits: interim answers, headers, chunks' framing.
"""

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
_PIECE_BYTES = 16 << 10  # what is parsed at once of a head, since a parser makes an object of each interim answer


class AnswerTooLong(aiohttp.ClientPayloadError):
    """The server sent more than an answer may have, besides its body."""


class CappedConnection(ResponseHandler):
    """aiohttp's connection, which drops interim answers and ends when it has received too much for one request."""

    _received_bytes = 0
    _body: StreamReader | None = None
    _has_head = False

    def set_response_params(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Begins to count anew, for the next request."""
        self._received_bytes, self._body, self._has_head = 0, None, False
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
                self._give_up()
                return
        if data:
            self._received_bytes += len(data)
            super().data_received(data)
        if self._body and self._received_bytes > self._most_bytes(self._body):
            self._give_up()

    def _most_bytes(self, body: StreamReader) -> int:
        return MOST_HEAD_BYTES + _FRAMING_BYTES + _FRAMING_PER_BYTE * body.total_bytes

    def _give_up(self) -> None:
        error = AnswerTooLong("the answer is too long")
        self.set_exception(error)
        if self._body:
            self._body.set_exception(error)
        if self.transport:
            self.transport.abort()
