"""A connection of the hot paths: it answers a usual request as its last byte arrives, and leaves others to aiohttp.

A usual request is a POST as Go's and aiohttp's clients write it, and its answer is available without waiting. It needs
no task, no parser and no response object, which together cost more than most decisions. This file handles the framing
of HTTP/1.1 (RFC 9112); its caller gives the answers.
"""

import asyncio
import functools
import re
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from extender.server.callers import CallerConnection
from extender.tables import declare_cache

AnswerNowait = Callable[[str, bytes], bytes | None]
"""The JSON text that answers 200 to this body at this path; None leaves the request to aiohttp."""

ShowsCaller = Callable[[str], bool | None]
"""Whether a path shows that its caller is the one that was told it; None if there is nothing at this path."""

# A body that takes longer is handed to aiohttp, which waits for it. Both callers are on a cluster's own network.
BODY_DEADLINE_SECONDS = 1.0

# A new connection that sends no whole request head is dropped after it. Between requests a connection may idle for the
# time of the keep-alive, as the pools of Go's clients do.
FIRST_REQUEST_SECONDS = 10.0

# After an answer that came before the end of its request, what still arrives is dropped for so long. If the connection
# were closed immediately, the kernel would tell the caller so, and the answer would be lost.
LINGER_SECONDS = 1.0

_END = b"\r\n\r\n"
_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# This file accepts a head only if it has no other fields than these, each on one line. Fields that frame a body in
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
# A longer body is passed to the transport beside its head instead of being copied behind it.
_COPIED_BYTES = 16 * 1024
# The attributes of aiohttp that this file reads. If a release of aiohttp renames them, aiohttp answers all requests.
_NEEDED = {"_close", "_force_close", "_messages", "_next_keepalive_close_time", "_paused", "_waiter"}
_SLOTS = {slot for each in RequestHandler.__mro__ for slot in getattr(each, "__slots__", ())}
FITS = _SLOTS >= _NEEDED
_TELLS_USE = {"_next_keepalive_close_time", "_request_count"} <= _SLOTS


class DirectServer(web.Server):
    """aiohttp's low-level server, whose connections ask `answer_nowait` first.

    `closing` tells whether each answer ends its connection. `shows_caller` is asked of the paths of requests.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        answer_nowait: AnswerNowait,
        shows_caller: ShowsCaller,
        body_limit_bytes: int,
        closing: Callable[[], bool],
        request_factory: Callable[..., web.BaseRequest],
        keep_alive_seconds: float,
    ) -> None:
        def make_request(
            message: RawRequestMessage,
            payload: StreamReader,
            protocol: RequestHandler,
            writer: AbstractStreamWriter,
            task: "asyncio.Task[None]",
        ) -> web.BaseRequest:
            cast("Connection", protocol).has_request = True
            return request_factory(message, payload, protocol, writer, task)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handler(request)
            finally:
                connection_of(request).end_request(is_whole=request.content.is_eof())

        super().__init__(handle, request_factory=make_request)
        self.answer_nowait = answer_nowait
        self.shows_caller = shows_caller
        self.body_limit_bytes = body_limit_bytes
        self.closing = closing
        self.keep_alive_seconds = keep_alive_seconds
        self._body_deadlines: dict[Connection, float] = {}  # connections whose body is incomplete, and since when
        self._look_again: asyncio.TimerHandle | None = None
        self._new_connections: dict[Connection, float] = {}  # and when each was made, the oldest first
        self._next_drop: asyncio.TimerHandle | None = None

    def __call__(self) -> RequestHandler:
        """Raises TypeError: the protocol object for a connection needs its caller."""
        raise TypeError("connections are made by connect")

    def connect(self, caller: CallerConnection) -> "Connection":
        """The protocol object for a new connection."""
        return Connection(self, self._loop, caller)

    def start_body_deadline(self, connection: "Connection") -> None:
        """Gives this connection's body one to two times `BODY_DEADLINE_SECONDS`; one timer serves all connections."""
        self._body_deadlines[connection] = self._loop.time()
        if self._look_again is None:
            self._look_again = self._loop.call_later(BODY_DEADLINE_SECONDS, self._expire_bodies)

    def end_body_deadline(self, connection: "Connection") -> None:
        """Ends the deadline of a body that has arrived or is given up."""
        self._body_deadlines.pop(connection, None)

    def start_first_request_deadline(self, connection: "Connection") -> None:
        """Gives a new connection `FIRST_REQUEST_SECONDS` for its first request; one timer serves all connections."""
        self._new_connections[connection] = self._loop.time()
        if self._next_drop is None:
            self._next_drop = self._loop.call_later(FIRST_REQUEST_SECONDS, self._drop_silent)

    def end_first_request_deadline(self, connection: "Connection") -> None:
        """Forgets a connection that is lost."""
        self._new_connections.pop(connection, None)

    def _drop_silent(self) -> None:
        """Drops those of the connections whose time is up that have sent no request; forgets the others of them."""
        late = self._loop.time() - FIRST_REQUEST_SECONDS
        for connection in [connection for connection, since in self._new_connections.items() if since <= late]:
            del self._new_connections[connection]
            connection.drop_if_silent()
        oldest = next(iter(self._new_connections.values()), None)
        self._next_drop = None
        if oldest is not None:
            self._next_drop = self._loop.call_at(oldest + FIRST_REQUEST_SECONDS, self._drop_silent)

    def _expire_bodies(self) -> None:
        late = self._loop.time() - BODY_DEADLINE_SECONDS
        for connection in [connection for connection, since in self._body_deadlines.items() if since <= late]:
            connection.give_up()
        again = self._loop.call_later(BODY_DEADLINE_SECONDS, self._expire_bodies) if self._body_deadlines else None
        self._look_again = again


class Connection(RequestHandler):
    """One connection.

    It passes aiohttp whole requests, one by one, so that aiohttp has no half-read request when this class answers the
    next one. Once it has passed anything else, aiohttp answers all further requests. `caller` counts the bytes that are
    kept here or in aiohttp, until their request is answered.
    """

    __slots__ = (
        "_awaited_bytes",
        "_drops",
        "_head",
        "_is_aiohttps",
        "_is_answering",
        "_pieces",
        "_server",
        "_was_shared",
        "body_deadline",
        "caller",
        "has_request",
        "is_refused",
    )

    def __init__(self, server: DirectServer, loop: asyncio.AbstractEventLoop, caller: CallerConnection) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=server.keep_alive_seconds,
            access_log=None,  # type: ignore[arg-type]  # None is no log
            lingering_time=LINGER_SECONDS,
        )
        self._server = server
        self.caller = caller
        self._pieces: list[bytes] = []  # of a request that is incomplete
        self._awaited_bytes = 0
        self._head = ("", 0)  # of that request: its path, and where its body starts
        self._is_aiohttps = not FITS
        self._was_shared = False
        self._is_answering = False  # whether aiohttp has a whole request that is not answered
        self._drops = False  # whether all that still arrives is dropped
        self.has_request = False  # whether the head of a request has arrived, ever
        self.is_refused = False  # whether there is no room for the body of the present request
        self.body_deadline: asyncio.Timeout | None = None  # of the present request's body, while aiohttp waits for it

    @property
    def keep_alive_until(self) -> float:
        """When aiohttp closes the connection unless another request comes, by the loop's clock."""
        return self._next_keepalive_close_time

    @property
    def idle_since(self) -> float | None:
        """When the last request was answered, or the connection made; None while a whole request is being answered."""
        if self._is_answering:
            return None
        return self.keep_alive_until - self._server.keep_alive_seconds if FITS else self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the deadline for the first request; with TLS the handshake is complete."""
        super().connection_made(transport)
        self.caller.peer = self
        self._server.start_first_request_deadline(self)

    def data_received(self, data: bytes) -> None:
        """Answers, keeps the data for later, or passes it to aiohttp. aiohttp calls this with no data to continue."""
        if self._awaited_bytes and data:
            self._pieces.append(data)
            self._awaited_bytes -= len(data)
            if self._awaited_bytes > 0:
                self.caller.hold(len(data))
                return
            is_whole = self._awaited_bytes == 0
            data = self._collected()
            if is_whole:
                self._respond(data, *self._head)
            else:
                self._is_aiohttps = True
                super().data_received(data)
            return
        if self._is_aiohttps or not data:
            self._pass_on(data)
            return
        end = data.find(_END, 0, _HEAD_BYTES) + len(_END)
        read = _read_head(data[:end]) if end >= len(_END) else None
        if read is None or read[1] > self._server.body_limit_bytes or len(data) > end + read[1]:
            self._is_aiohttps = True
            self._pass_on(data)
        elif len(data) < end + read[1]:
            self._begin_body(data, end, *read)
        else:
            self._respond(data, read[0], end)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Drops what was kept for later."""
        self._collected()
        self.caller.end()
        self._server.end_first_request_deadline(self)
        super().connection_lost(exc)

    def begin_answer(self) -> None:
        """Notes that a whole request has arrived, which is answered whatever else is refused."""
        self._is_answering = True
        self.body_deadline = None

    def end_request(self, *, is_whole: bool) -> None:
        """Notes that the answer to a request is made. What is still to come of the request is dropped."""
        self._is_answering = False
        self.body_deadline = None
        if not is_whole:
            self._drops = True
        if self._drops or not getattr(self, "_messages", ()):
            self.caller.give_back()

    def refuse_body(self) -> None:
        """Drops what has arrived of a body; aiohttp answers that there is no room, and the connection ends."""
        self.is_refused = self._drops = True
        self._loop.call_later(2 * LINGER_SECONDS, self._abort)  # if no request's head is complete, nobody answers
        if self._pieces:
            self._pass_head(self._collected())
        elif self.body_deadline and not self.body_deadline.expired():
            self.body_deadline.reschedule(self._loop.time())

    def _begin_body(self, data: bytes, body_start: int, path: str, length: int) -> None:
        """Keeps the first part of a request, if its body may come; else aiohttp answers its head."""
        self._head = (path, body_start)
        if not self.caller.is_proven:
            shows_caller = self._server.shows_caller(path)
            if shows_caller:
                self.caller.set_proven()
            if shows_caller is None or length > self.caller.body_limits.request_bytes:
                self._drops = True
                self._pass_head(data)
                return
        self._pieces.append(data)
        self._awaited_bytes = body_start + length - len(data)
        self._server.start_body_deadline(self)
        self.caller.hold(len(data))

    def _pass_head(self, data: bytes) -> None:
        """Passes the head of an incomplete request to aiohttp, and nothing of its body."""
        self._is_aiohttps = self.has_request = True
        super().data_received(data[: self._head[1]])

    def _pass_on(self, data: bytes) -> None:
        """Passes data to aiohttp if there is room for it."""
        if not self._drops and (not data or self.caller.hold(len(data))):
            super().data_received(data)

    def _respond(self, data: bytes, path: str, body_start: int) -> None:
        """Answers one whole request, or passes it to aiohttp."""
        self.has_request = True
        text = self._server.answer_nowait(path, data[body_start:]) if self._is_idle() else None
        if text is None or self.transport is None:
            self._was_shared = True
            self._head = (path, body_start)
            self._pieces.append(data)
            if self.caller.hold(len(data) - self.caller.body_bytes):
                super().data_received(self._collected())
            return
        closing = self._server.closing()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n" % (
            len(text),
            _CLOCK.line(),
            b"Connection: close\r\n" if closing else b"",
        )
        if len(text) < _COPIED_BYTES:
            self.transport.write(head + text)
        else:
            self.transport.writelines((head, text))
            # Pauses us if the peer does not read; `writelines` of asyncio 3.12.0-8 and 3.13.0-1 omits it (gh-127655).
            self.transport.set_write_buffer_limits()
        caller = self.caller
        if caller.body_bytes:
            caller.give_back()
        if not caller.is_proven and self._server.shows_caller(path):
            caller.set_proven()
        if closing:
            self.force_close()
        else:
            self._next_keepalive_close_time = self._loop.time() + self._server.keep_alive_seconds

    def _is_idle(self) -> bool:
        """Whether aiohttp has answered all requests it was passed, and the peer reads what is sent."""
        if self._close or self._force_close or self._paused:
            return False
        return not self._was_shared or (self._waiter is not None and not self._waiter.done())

    def drop_if_silent(self) -> None:
        """Closes the connection, without waiting for the peer, if it has sent no whole request head."""
        if not self.has_request and not self._awaited_bytes:
            self._abort()

    def give_up(self) -> None:
        """Passes a request whose body is late to aiohttp."""
        self._is_aiohttps = True
        super().data_received(self._collected())

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _collected(self) -> bytes:
        """Returns the data that was kept for later, and drops it."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._awaited_bytes = 0
        self._server.end_body_deadline(self)
        return data


class PlainPeer:
    """What `callers` asks of a connection that aiohttp alone serves: it counts as idle since its last answer was sent.

    That is so while it answers, too: a caller that does not read what it asked for would keep it for ever otherwise.
    """

    def __init__(self, protocol: RequestHandler, made_at: float) -> None:
        """`made_at` is when the connection was accepted, by the clock of the event loop."""
        self._protocol = protocol
        self._made_at = made_at

    @property
    def idle_since(self) -> float:
        """When the last answer was sent, or the connection made."""
        if not _TELLS_USE:
            return self._made_at
        protocol = self._protocol
        return max(self._made_at, protocol._next_keepalive_close_time - protocol.keepalive_timeout)  # noqa: SLF001

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived, ever."""
        return _TELLS_USE and self._protocol._request_count > 0  # noqa: SLF001

    def refuse_body(self) -> None:
        """Does nothing, since bodies are not counted there."""


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection on which a request came to a `DirectServer`."""
    return cast("Connection", request.protocol)  # it makes no other ones


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
_HEADS = declare_cache("server.connection.heads", key="request head", bound=1024, at_most="6 MB")


@functools.lru_cache(_HEADS.rows)
def _read_head(head: bytes) -> tuple[str, int] | None:
    """Path and body length of a request that can be answered here; None for any other."""
    found = _HEAD.fullmatch(head)
    if not found:
        return None
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return None
    return found["path"].partition(b"?")[0].decode(), int(found["length"])
