"""Answers a usual request as its last byte arrives, and leaves others to aiohttp.

A usual request is a POST as Go's and aiohttp's clients write it, whose answer is available without waiting. It needs no
task, no parser and no response object, which together cost more than most decisions. This file handles the framing of
HTTP/1.1 (RFC 9112); its caller gives the answers.
"""

import functools
import re
import time
from collections.abc import Awaitable, Callable, Container
from email.utils import formatdate

from aiohttp import web

from extender.server.connection import HEAD_END, KEEP_ALIVE_SECONDS, Connection
from extender.server.limits import Connections
from extender.tables import declare_cache

AnswerNowait = Callable[[str, bytes], bytes | None]
"""The JSON text that answers 200 to this body at this path; None leaves the request to aiohttp."""

_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# A head is accepted here only if it has no other fields than these, each on one line. Fields that frame a body in
# another way, end the connection or ask for more than an answer are not among them: Transfer-Encoding, Connection,
# Expect, Upgrade. `_read_head` also wants a Host, and no field twice. aiohttp refuses any other such head, so that both
# ways agree on what is a request. No text matches in two ways, and quantifiers are possessive: otherwise a head of many
# fields would take time exponential in their number.
_HEAD = re.compile(
    rb"(?-i:POST) (?P<path>/[!-~]*) (?-i:HTTP)/1\.1\r\n"
    rb"(?:(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n)*+"
    rb"Content-Length: ?(?P<length>[0-9]{1,12})\r\n"
    rb"(?:(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n)*+"
    rb"\r\n",
    re.IGNORECASE,
)
_UNUSUAL = ("", 0)
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n"
# A longer answer is passed to the transport beside its head instead of being copied behind it.
_COPIED_BYTES = 16 * 1024


class FastServer(web.Server):
    """aiohttp's low-level server, whose connections ask `answer_nowait` about requests at `paths` first.

    `closing` tells whether each answer ends its connection.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        paths: Container[str],
        answer_nowait: AnswerNowait,
        body_limit_bytes: int,
        closing: Callable[[], bool],
        request_factory: Callable[..., web.BaseRequest],
    ) -> None:
        super().__init__(handler, request_factory=request_factory)
        self.paths = paths
        self.answer_nowait = answer_nowait
        self.body_limit_bytes = body_limit_bytes
        self.closing = closing


class FastConnection(Connection):
    """One connection of a `FastServer`.

    It passes aiohttp whole requests, one by one, so that aiohttp has no half-read request when this class answers the
    next one. Once it has passed anything else, aiohttp answers all further requests.
    """

    __slots__ = ("_fast_server", "_head", "_is_aiohttps", "_missing_bytes", "_pieces")

    def __init__(self, server: FastServer, connections: Connections) -> None:
        super().__init__(server, connections)
        self._fast_server = server
        self._pieces: list[bytes] = []  # of a request that is incomplete
        self._missing_bytes = 0  # of that request
        self._head = ("", 0)  # of that request: its path, and where its body starts
        self._is_aiohttps = False

    def data_received(self, data: bytes) -> None:
        """Answers, keeps the data for later, or passes it to aiohttp. aiohttp calls this with no data to continue."""
        if self._missing_bytes and data:
            self._add_piece(data)
            return
        if self._is_aiohttps or not data:
            super().data_received(data)
            return
        start = data.find(HEAD_END, 0, _HEAD_BYTES) + len(HEAD_END)
        path, length = _read_head(data[:start]) if start >= len(HEAD_END) else _UNUSUAL
        server = self._fast_server
        if path not in server.paths or length > server.body_limit_bytes or len(data) > start + length:
            self._is_aiohttps = True
            super().data_received(data)
        elif len(data) < start + length:
            self._head = (path, start)
            self._missing_bytes = start + length
            self.connections.await_body(self)
            self._add_piece(data)
        else:
            if not self.has_asked:
                self.end_request()
            self._answer(data, path, start)

    @property
    def awaits_body(self) -> bool:
        """As `Connection` has it."""
        return self._missing_bytes > 0 or super().awaits_body

    def answer_last(self, status: str, why: str) -> None:
        """As `Connection` has it."""
        self._collected()
        self._is_aiohttps = True
        super().answer_last(status, why)

    def _add_piece(self, data: bytes) -> None:
        """Keeps a part of a request, or answers the request if it is the last."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            self.receive(len(data))
            return
        is_whole = not self._missing_bytes
        data = self._collected()
        self.end_request()
        if is_whole:
            self._answer(data, *self._head)
        else:
            self._is_aiohttps = True
            super().data_received(data)

    def _collected(self) -> bytes:
        """Returns the data that was kept for later, and drops it."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._missing_bytes = 0
        return data

    def _answer(self, data: bytes, path: str, body_start: int) -> None:
        """Answers one whole request, or passes it to aiohttp."""
        text = self._fast_server.answer_nowait(path, data[body_start:]) if self._is_idle() else None
        if text is None or self.transport is None:
            super().data_received(data)
            return
        closing = self._fast_server.closing()
        head = _OK % (len(text), _CLOCK.line(), b"Connection: close\r\n" if closing else b"")
        if len(text) < _COPIED_BYTES:
            self.transport.write(head + text)
        else:
            self.transport.writelines((head, text))
            # Pauses us if the peer does not read; `writelines` of asyncio 3.12.0-8 and 3.13.0-1 omits it (gh-127655).
            self.transport.set_write_buffer_limits()
        if closing:
            self.force_close()
        else:
            self._next_keepalive_close_time = self._loop.time() + KEEP_ALIVE_SECONDS

    def _is_idle(self) -> bool:
        """Whether aiohttp has answered all requests it was passed, and the peer reads what is sent."""
        if self._close or self._force_close or self._paused:
            return False
        return not self._request_count or (self._waiter is not None and not self._waiter.done())


class _Clock:
    """Caches the line of the Date header, which changes once a second (RFC 9110, section 6.6.1)."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


_CLOCK = _Clock()


# The heads of one client differ only in Content-Length.
_HEADS = declare_cache("server.fast_lane.heads", key="request head", rows=256, most_mb=1.5)


@functools.lru_cache(_HEADS.rows)
def _read_head(head: bytes) -> tuple[str, int]:
    """Path and body length of a request that can be answered here; `_UNUSUAL` for any other."""
    found = _HEAD.fullmatch(head)
    if not found:
        return _UNUSUAL
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return _UNUSUAL
    return found["path"].partition(b"?")[0].decode(), int(found["length"])
