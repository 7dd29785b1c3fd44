"""A listener's connections: what they may take together, and how one of them is answered.

A usual request, a POST as Go's and aiohttp's clients write it, is answered here: parsing it as aiohttp does costs more
than most decisions. Every other connection is handed over to aiohttp's server, before anything of it was answered; what
it may take is watched on. One request at a time: if more than that comes, its answer ends the connection.

Nothing here tells one caller from another: a certificate authority of clients or a network policy does. When a listener
is full, what is least likely to be of use gives way.
"""

import asyncio
import functools
import re
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web

from extender.metrics import counter
from extender.server.routes import Answer, Post, Responder, Unreadable, problem_text
from extender.tables import declare_cache

T = TypeVar("T")

MIB = 1024 * 1024

# A new connection has this long for its TLS handshake and the head of its first request, and one in use for the rest of
# a head that has begun.
HEAD_SECONDS = 10.0
# A body that has begun arrives within this, whatever its size. The API server waits for an answer for 30 s at most.
BODY_SECONDS = 30.0
# A connection gives way to a new one after it: a handshake and a request take milliseconds.
IDLE_SECONDS = 2.0
# A connection that is new when the listener closes has this long for the request that it has sent.
LAST_REQUESTS_SECONDS = 0.5
# How soon a full listener looks again when it has found none. A look at 640 takes 0.1 ms.
_LOOK_SECONDS = 0.1

REFUSALS = counter(
    "multiarch_listener_refusals_total",
    "What listeners refused or ended, by what it had too much of; descriptors: pauses without any to accept with.",
    "reason",
    ("connections", "bytes", "time", "descriptors"),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one listener: its connections, the bytes of a body, and those of all requests without an answer."""

    connections: int = 128  # probes and Prometheus have one or two each
    body_bytes: int = MIB // 4
    pending_bytes: int = MIB


# kube-scheduler calls one verb after the other. A body has up to 5,000 nodes, as the largest cluster that Kubernetes
# supports. A node is 8-15 KB of JSON, most of it status.images (50 images of 5 names at most), so 16 KiB is more than
# a cluster's nodes have on average. One such body fits beside many that have names alone, and its answer beside it.
SCHEDULER = Limits(connections=256, body_bytes=5_000 * 16 * 1024, pending_bytes=5_000 * 16 * 1024 + 32 * MIB)
# Three API servers with 200 reviews under way each, their limit of mutating requests by default. A TLS connection takes
# 31 KB, and 145 KB once much has come at once: 93 MB at most. etcd refuses objects over 1.5 MiB by default, and a
# review holds two of them (object and oldObject) and an envelope.
ADMISSION = Limits(connections=640, body_bytes=8 * MIB, pending_bytes=32 * MIB)


class Connections:
    """The open connections of one listener, those in their TLS handshake among them. `clock` is the event loop's."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.clock = clock
        self.pending_bytes = 0
        self.answers: set[asyncio.Task[Any]] = set()
        """What makes answers now, also for connections that have been lost."""
        self._open: dict[Connection, None] = {}
        self._deadlines: dict[Connection, float] = {}  # of requests that arrive, the first that began first
        self.are_awaited = asyncio.Event()
        """Set while there may be such requests."""
        self._none_idle_before = 0.0
        self.is_draining = False
        self._left = asyncio.Event()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def has_room(self) -> bool:
        """Whether there may be one more; ends idle ones for it."""
        if len(self._open) < self.limits.connections or self._end_idle():
            return True
        REFUSALS["connections"].inc()
        return False

    def add(self, connection: "Connection") -> None:
        """Counts a new one, and starts the deadline of its first request."""
        self._open[connection] = None
        self.await_head(connection)

    def remove(self, connection: "Connection") -> None:
        """Counts it as closed; calls after the first have no effect."""
        self._open.pop(connection, None)
        self._deadlines.pop(connection, None)
        self.release(connection)
        self._left.set()

    def await_head(self, connection: "Connection") -> None:
        """Starts the deadline of a head."""
        self._deadlines[connection] = self.clock() + HEAD_SECONDS
        self.are_awaited.set()

    def await_body(self, connection: "Connection") -> None:
        """Starts the deadline of a body."""
        self._deadlines[connection] = self.clock() + BODY_SECONDS
        self.are_awaited.set()

    def is_awaiting(self, connection: "Connection") -> bool:
        """Whether a request is arriving, or the first one is awaited."""
        return connection in self._deadlines

    def end_wait(self, connection: "Connection") -> None:
        """Notes that no request is arriving."""
        self._deadlines.pop(connection, None)

    def hold(self, connection: "Connection", size: int) -> bool:
        """Counts bytes of a request as kept until `release`; returns False if they are refused.

        When there are too many, the request is refused that began to arrive first and has not arrived yet.
        """
        connection.pending_bytes += size
        self.pending_bytes += size
        while self.pending_bytes > self.limits.pending_bytes:
            refused = next((each for each in self._deadlines if each.pending_bytes), connection)
            REFUSALS["bytes"].inc()
            self.release(refused)
            refused.refuse()
            if refused is connection:
                return False
        return True

    def release(self, connection: "Connection") -> None:
        """Counts the bytes of a request as kept no longer."""
        self.pending_bytes -= connection.pending_bytes
        connection.pending_bytes = 0

    def end_late(self) -> None:
        """Ends the connections whose request is late; the listener calls this every second of `are_awaited`."""
        now = self.clock()
        for connection in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            REFUSALS["time"].inc()
            self.end_wait(connection)
            self.release(connection)
            connection.expire()
        if not self._deadlines:
            self.are_awaited.clear()

    def _end_idle(self) -> bool:
        """Ends the one that has idled longest, if that is long; one that has asked only if all others have."""
        now = self.clock()
        if now < self._none_idle_before:
            return False
        idle = ((since, each) for each in self._open if (since := each.idle_since))
        found = min(idle, key=lambda each: each[0], default=None)
        if found is None or found[0][1] > now - IDLE_SECONDS:
            self._none_idle_before = now + _LOOK_SECONDS
            return False
        connection = found[1]
        REFUSALS["connections"].inc()
        self.remove(connection)
        connection.abort()
        return True

    async def drain(self, seconds: float) -> None:
        """Ends all connections: idle ones now, the others when they have their answer or the time is up."""
        self.is_draining = True
        end = self.clock() + seconds
        for connection in [each for each in self._open if each.is_idle and each.has_asked]:
            connection.close()
        await self._empty(min(end, self.clock() + LAST_REQUESTS_SECONDS))
        for connection in [each for each in self._open if each.is_idle]:
            connection.close()
        await self._empty(end)
        for connection in [*self._open]:
            self.remove(connection)
            connection.abort()
        if self.answers:
            await asyncio.wait(self.answers, timeout=max(0.0, end - self.clock()))
        for answer in self.answers:
            answer.cancel()
        await asyncio.gather(*self.answers, return_exceptions=True)

    async def _empty(self, end: float) -> None:
        """Returns when there is no connection, and at this time at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while self._open:
                    self._left.clear()
                    await self._left.wait()


# A connection must outlive kube-scheduler's idle pool (90 s), or the server closes it just as a POST is sent on it.
KEEP_ALIVE_SECONDS = 3630.0
# After an answer that came before the end of its request, what still arrives is dropped for so long. If the connection
# were closed at once, the kernel would tell the caller so, and the answer would be lost.
LINGER_SECONDS = 1.0

_HEAD_END = b"\r\n\r\n"
_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# A head is usual only if it has no other fields than these, each on one line. Fields that frame a body in another way,
# end the connection or ask for more than an answer are not among them: Transfer-Encoding, Connection, Expect, Upgrade.
# `_read_head` also wants a Host, and no field twice. aiohttp refuses any other such head, so that both ways agree on
# what is a request. No text matches in two ways, and quantifiers are possessive: otherwise a head of many fields would
# take time exponential in their number.
_FIELD = rb"(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n"
_HEAD = re.compile(
    rb"(?-i:POST) (?P<path>/[!-~]*) (?-i:HTTP)/1\.1\r\n(?:%b)*+Content-Length: ?(?P<length>[0-9]{1,12})\r\n(?:%b)*+\r\n"
    % (_FIELD, _FIELD),
    re.IGNORECASE,
)
_UNUSUAL = ("", 0)
# The heads of one client differ only in Content-Length.
_HEADS = declare_cache("server.connection.heads", key="request head", rows=256, most_mb=1.5)
_DATES = declare_cache("server.connection.dates", key="second", rows=1, most_mb=0.01)
_ANSWER = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
# A longer answer is passed to the transport beside its head instead of being copied behind it.
_COPIED_BYTES = 16 * 1024
_NO_ROOM, _LATE = 503, 408
_WHY = {
    _NO_ROOM: "the bodies of other requests take all the room that there is",
    _LATE: "the body did not arrive in time",
}


@functools.lru_cache(_HEADS.rows)
def _read_head(head: bytes) -> tuple[str, int]:
    """Path and body length of a usual request; `_UNUSUAL` for any other."""
    found = _HEAD.fullmatch(head)
    if not found:
        return _UNUSUAL
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return _UNUSUAL
    return found["path"].partition(b"?")[0].decode(), int(found["length"])


@functools.lru_cache(_DATES.rows)
def _date_field(second: int) -> bytes:
    """The Date of answers in this second (RFC 9110, section 6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()


def _start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Runs a task up to its first wait, where Python can; it may be done then."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


class Connection(asyncio.Protocol):
    """One connection of a listener."""

    def __init__(self, service: Responder, connections: Connections) -> None:
        """Counts itself among `connections`, until `connection_lost`."""
        self.handshake: asyncio.Task[None] | None = None  # while there is no transport
        self.pending_bytes = 0
        self.has_asked = False
        self._service = service
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._since = self._loop.time()  # when it was opened or answered last
        self._aging: asyncio.TimerHandle | None = None
        self._is_answering = False  # whether a whole request has no answer yet
        self._has_more = False  # whether something came behind it, which is not read
        self._is_ending = False  # whether what still arrives is dropped
        self._is_paused = False  # as the peer does not read
        self._post: Post | None = None  # of a usual request whose body is arriving
        self._pieces: list[bytes] = []  # of it, its head first: joined once, as a body may have 80 MB
        self._missing_bytes = 0
        self._handler: web.RequestHandler | None = None  # aiohttp's, which answers if there is one
        self._arrived_bytes = self._head_bytes = 0  # of the request that it has
        self._tail = b""  # the last four of them
        self._reading: asyncio.Timeout | None = None  # while it waits for a body
        self._refusal = 0  # the status to refuse that body with
        connections.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to count its age."""
        self._transport = cast("asyncio.Transport", transport)
        self._check_age()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts itself as closed."""
        self._connections.remove(self)
        self._transport = None
        self._pieces.clear()
        if self._aging:
            self._aging.cancel()
        if self._handler:
            self._handler.connection_lost(exc)
            self._handler = None

    def pause_writing(self) -> None:
        """Reads nothing more until what was written is read, so that answers do not pile up."""
        self._is_paused = True
        if self._handler:
            self._handler.pause_writing()
        elif self._transport:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Goes on."""
        self._is_paused = False
        if self._handler:
            self._handler.resume_writing()
        elif self._transport:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answers, keeps the data for later, or passes it to aiohttp."""
        if self._is_answering:
            self._has_more = True
        elif self._handler:
            self._pass_on(data)
        elif self._missing_bytes:
            self._add_piece(data)
        elif not self._is_ending:
            start = data.find(_HEAD_END, 0, _HEAD_BYTES) + len(_HEAD_END)
            path, length = _read_head(data[:start]) if start >= len(_HEAD_END) else _UNUSUAL
            post = self._service.posts.get(path)
            if post is None or length > self._connections.limits.body_bytes or len(data) > start + length:
                self._hand_over(data)
            elif len(data) == start + length:
                self._answer(post, data[start:])
            else:
                self._post, self._missing_bytes = post, length
                self._pieces.append(data[:start])
                self._connections.await_body(self)
                self._add_piece(data[start:])

    @property
    def idle_since(self) -> tuple[bool, float] | None:
        """Whether it has ever had a request, and since when it has none; None while it waits for an answer."""
        return None if self._is_answering else (self.has_asked, self._since)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request has arrived that has no answer."""
        return not (self._is_answering or self._missing_bytes or self.pending_bytes)

    def expire(self) -> None:
        """Ends it, as the request that is arriving is late."""
        if self._missing_bytes or self._reading:
            self._refuse(_LATE)
        else:
            self.abort()

    def refuse(self) -> None:
        """Ends it, as there is no room for the bytes of its request."""
        self._refuse(_NO_ROOM)

    def close(self) -> None:
        """Ends it once what was written is sent, and counts it no longer."""
        self._connections.remove(self)
        if self._transport:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Ends it without waiting for the other side."""
        if self._transport:
            self._transport.abort()
        elif self.handshake:
            self.handshake.cancel()

    def _check_age(self) -> None:
        """Closes it if nobody has asked for long; called again when that may be so."""
        now = self._loop.time()
        if not self.is_idle or now < self._since + KEEP_ALIVE_SECONDS:
            self._aging = self._loop.call_at(max(now, self._since) + KEEP_ALIVE_SECONDS, self._check_age)
        else:
            self.close()

    def _add_piece(self, data: bytes) -> None:
        """Keeps a part of a body, or goes on if it is the last."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            self._connections.hold(self, len(data))
            return
        self._connections.release(self)
        head, *body = self._pieces
        post, missing_bytes, self._missing_bytes = self._post, self._missing_bytes, 0
        self._pieces.clear()
        del data
        joined = b"".join(body)
        body.clear()
        if missing_bytes or not post:
            self._hand_over(head, joined)
        else:
            self._answer(post, joined)

    def _answer(self, post: Post, body: bytes) -> None:
        """Answers a whole request."""
        self._arrived()
        if not self._connections.hold(self, len(body)):
            return
        answer = _start(post(body))
        if answer.done():
            self._end_answer(answer)
        else:
            self._connections.answers.add(answer)
            answer.add_done_callback(self._end_answer)

    def _end_answer(self, answer: "asyncio.Task[Answer]") -> None:
        self._connections.answers.discard(answer)
        has_more = self._has_more
        self._quiet()
        if answer.cancelled() or answer.exception():
            self.abort()
        elif has_more:
            self._write_last(answer.result())
        else:
            is_closing = self._connections.is_draining or self._service.is_draining()
            self._write(answer.result(), is_closing=is_closing)
            if is_closing:
                self.close()

    def _write(self, answer: Answer, *, is_closing: bool) -> None:
        if self._transport is None:
            return
        fields = _date_field(int(time.time()))
        if answer.status == _NO_ROOM:
            fields += b"Retry-After: 1\r\n"
        if is_closing:
            fields += b"Connection: close\r\n"
        phrase = b"OK" if answer.status == 200 else HTTPStatus(answer.status).phrase.encode()
        head = _ANSWER % (answer.status, phrase, len(answer.text), fields)
        if len(answer.text) < _COPIED_BYTES:
            self._transport.write(head + answer.text)
        else:
            self._transport.writelines((head, answer.text))
            # Pauses us if the peer does not read; `writelines` of asyncio 3.12.0-8 and 3.13.0-1 omits it (gh-127655).
            self._transport.set_write_buffer_limits()

    def _write_last(self, answer: Answer) -> None:
        """Answers, drops what still arrives, and ends the connection."""
        self._is_ending = True
        if self._transport is None or self._is_paused:
            self.abort()
            return
        self._write(answer, is_closing=True)
        self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def _refuse(self, status: int) -> None:
        """Answers the request that is arriving so, and ends the connection."""
        self._is_ending = True
        self._refusal = status
        if self._reading:
            self._reading.reschedule(self._loop.time())
        elif not self._handler:
            self._pieces.clear()
            self._missing_bytes = 0
            self._is_answering = False
            self._write_last(Answer(status, problem_text(_WHY[status])))

    def _arrived(self) -> None:
        """Notes that a request has arrived."""
        self.has_asked = self._is_answering = True
        self._connections.end_wait(self)

    def _quiet(self) -> None:
        """Notes that there is no request now."""
        self._is_answering = self._has_more = False
        self._arrived_bytes = self._head_bytes = 0
        self._tail = b""
        self._since = self._loop.time()
        self._connections.release(self)

    def _hand_over(self, *pieces: bytes) -> None:
        """Has aiohttp answer from here on."""
        if self._transport is None:
            return
        server = web.Server(self._handle, access_log=None, lingering_time=LINGER_SECONDS)
        self._handler = server()
        self._handler.connection_made(self._transport)
        if self._is_paused:
            self._handler.pause_writing()
            self._transport.resume_reading()
        for piece in pieces:
            self._pass_on(piece)

    def _pass_on(self, data: bytes) -> None:
        """Passes data to aiohttp, and counts it until its request is answered."""
        if not self._is_ending:
            if not self._connections.is_awaiting(self):
                self._connections.await_head(self)
            self._connections.hold(self, len(data))
            if not self._head_bytes:
                found = (self._tail + data).find(_HEAD_END)
                self._head_bytes = self._arrived_bytes - len(self._tail) + found + len(_HEAD_END) if found >= 0 else 0
            self._arrived_bytes += len(data)
            self._tail = (self._tail + data[-4:])[-4:]
        if self._handler:
            self._handler.data_received(data)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers a request that aiohttp has the head of."""
        task = asyncio.current_task()
        assert task is not None, "aiohttp calls this in one"  # noqa: S101
        self._connections.answers.add(task)
        try:
            if request.content.is_eof():
                self._arrived()
            else:
                self._connections.await_body(self)
            response = await self._service.respond(request, functools.partial(self._read_body, request))
            is_draining = self._connections.is_draining or self._service.is_draining()
            if is_draining or self._is_ending or not self._is_one(request):
                self._is_ending = True
                self._connections.await_head(self)  # for aiohttp to end it
                response.force_close()
            return response
        finally:
            self._connections.answers.discard(task)
            self._quiet()

    def _is_one(self, request: web.BaseRequest) -> bool:
        """Whether this request has arrived whole, and nothing that may belong to another one."""
        if (
            self._has_more
            or not request.content.is_eof()
            or "Upgrade" in request.headers
            or request.method == "CONNECT"
        ):
            return False
        bytes_with_length = self._head_bytes + (request.content_length or 0)
        return self._tail == _HEAD_END or self._arrived_bytes == bytes_with_length

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        """The body, once it is whole. Raises `Unreadable`."""
        limit_bytes = self._connections.limits.body_bytes
        left_bytes = limit_bytes - (request.content_length or 0)
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(None) as self._reading:
                while left_bytes >= 0 and not self._refusal and (piece := await request.content.readany()):
                    pieces.append(piece)
                    left_bytes -= 0 if request.content_length else len(piece)
        except TimeoutError:
            pass  # it is refused
        except (web.RequestPayloadError, ConnectionError) as exc:
            raise Unreadable(400, "the body is not what its headers say, or ended early") from exc
        finally:
            self._reading = None
        if self._refusal:
            raise Unreadable(self._refusal, _WHY[self._refusal])
        if left_bytes < 0:
            raise Unreadable(413, f"the body is larger than {limit_bytes} bytes")
        self._arrived()
        return b"".join(pieces)
