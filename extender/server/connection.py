"""A listener's connections: what they may take together, and how one of aiohttp's keeps to it.

Nothing here tells one caller from another: a certificate authority of clients or a network policy does. When a listener
is full, what is least likely to be of use gives way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import msgspec
from aiohttp import StreamReader, web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from extender.metrics import counter

MIB = 1024 * 1024

# A new connection has this long for its TLS handshake and the head of its first request, and one in use for the rest of
# a head that has begun.
HEAD_SECONDS = 10.0
# A body that has begun arrives within this, whatever its size. The API server waits for an answer for 30 s at most.
BODY_SECONDS = 30.0
# A connection gives way to a new one after it: a handshake and a request take milliseconds.
IDLE_SECONDS = 2.0
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


class Limited(Protocol):
    """What this file asks of a connection."""

    pending_bytes: int

    @property
    def idle_since(self) -> tuple[bool, float] | None:
        """Whether it has ever had a request, and since when it has none; None while it waits for an answer."""

    def expire(self) -> bool:
        """Ends it, as the request that is arriving is late; False if it waits for the answer to an earlier one."""

    def refuse(self) -> None:
        """Ends it, as there is no room for the bytes of its request."""

    def abort(self) -> None:
        """Ends it without waiting for the other side."""


class Connections:
    """The open connections of one listener, those in their TLS handshake among them. `clock` is the event loop's."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.clock = clock
        self.pending_bytes = 0
        self._open: dict[Limited, None] = {}
        self._deadlines: dict[Limited, float] = {}  # of requests that arrive, the first that began first
        self.are_awaited = asyncio.Event()
        """Set while there may be such requests."""
        self._none_idle_before = 0.0

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

    def add(self, connection: Limited) -> None:
        """Counts a new one, and starts the deadline of its first request."""
        self._open[connection] = None
        self.await_head(connection)

    def remove(self, connection: Limited) -> None:
        """Counts it as closed; calls after the first have no effect."""
        self._open.pop(connection, None)
        self._deadlines.pop(connection, None)
        self.release(connection)

    def await_head(self, connection: Limited) -> None:
        """Starts the deadline of a head."""
        self._deadlines[connection] = self.clock() + HEAD_SECONDS
        self.are_awaited.set()

    def await_body(self, connection: Limited) -> None:
        """Starts the deadline of a body."""
        self._deadlines[connection] = self.clock() + BODY_SECONDS
        self.are_awaited.set()

    def is_awaiting(self, connection: Limited) -> bool:
        """Whether a request is arriving, or the first one is awaited."""
        return connection in self._deadlines

    def end_wait(self, connection: Limited) -> None:
        """Notes that no request is arriving."""
        self._deadlines.pop(connection, None)

    def hold(self, connection: Limited, size: int) -> bool:
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

    def release(self, connection: Limited) -> None:
        """Counts the bytes of a request as kept no longer."""
        self.pending_bytes -= connection.pending_bytes
        connection.pending_bytes = 0

    def end_late(self) -> None:
        """Ends the connections whose request is late; the listener calls this every second of `are_awaited`."""
        now = self.clock()
        for connection in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            if connection.expire():
                self.release(connection)
                REFUSALS["time"].inc()
            else:
                self.await_head(connection)
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


# A connection must outlive kube-scheduler's idle pool (90 s), or the server closes it just as a POST is sent on it.
KEEP_ALIVE_SECONDS = 3630.0
# After an answer that came before the end of its request, what still arrives is dropped for so long. If the connection
# were closed at once, the kernel would tell the caller so, and the answer would be lost.
LINGER_SECONDS = 1.0

HEAD_END = b"\r\n\r\n"
_NO_ROOM = ("503 Service Unavailable\r\nRetry-After: 1", "the bodies of other requests take all the room that there is")
_LATE = ("408 Request Timeout", "the body did not arrive in time")


class Connection(RequestHandler):
    """One connection. It reads private attributes of aiohttp's class, for which pyproject.toml bounds the release."""

    __slots__ = ("_payload", "_unanswered", "connections", "handshake", "has_asked", "is_refused", "pending_bytes")

    def __init__(self, server: web.Server, connections: Connections) -> None:
        """Counts itself among `connections`, until `connection_lost`."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            access_log=None,  # type: ignore[arg-type]  # None is no log
            lingering_time=LINGER_SECONDS,
        )
        self._next_keepalive_close_time = self._loop.time() + KEEP_ALIVE_SECONDS
        self.connections = connections
        self.handshake: asyncio.Task[None] | None = None  # while there is no transport
        self.has_asked = False
        self.is_refused = False  # whether all that still arrives is dropped
        self.pending_bytes = 0
        self._payload: StreamReader = EMPTY_PAYLOAD  # of the last request that aiohttp has the head of
        self._unanswered = 0  # requests that aiohttp has
        connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts itself as closed."""
        self.connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes data to aiohttp, and counts it until its request is answered. aiohttp calls this without any, too."""
        if data and not self.receive(len(data)):
            return
        before, fed = self._request_count, self._payload.total_bytes
        super().data_received(data)
        heads = self._request_count - before
        if heads:
            self._unanswered += heads
            self._payload, fed = self._messages[-1][1], 0
        if not self._is_streaming:
            if _ends_request(data, self._payload.total_bytes - fed, has_head=heads > 0):
                self.end_request()
        elif heads:
            self.connections.await_body(self)

    def receive(self, size: int) -> bool:
        """Counts bytes of a request that arrive; False if they are refused."""
        if self.is_refused:
            return False
        if self._is_streaming and not self._unanswered:  # it was answered early, and aiohttp drops the rest
            return True
        if not self.connections.is_awaiting(self):
            self.connections.await_head(self)
        return self.connections.hold(self, size)

    def end_request(self) -> None:
        """Notes that a request has arrived, and nothing of a further one."""
        self.has_asked = True
        self.connections.end_wait(self)
        if not self._unanswered:
            self.connections.release(self)

    def end_answer(self) -> None:
        """Notes that the handler has made an answer."""
        self._unanswered = max(self._unanswered - 1, 0)
        if not self._unanswered:
            self.connections.release(self)

    @property
    def idle_since(self) -> tuple[bool, float] | None:
        """As `Limited` has it. aiohttp too notes with each answer when the connection is to end."""
        if self._is_answering:
            return None
        return self.has_asked, self._next_keepalive_close_time - KEEP_ALIVE_SECONDS

    def expire(self) -> bool:
        """As `Limited` has it."""
        if self._is_answering:
            return False
        if self.awaits_body:
            self.answer_last(*_LATE)
        else:
            self.abort()
        return True

    def refuse(self) -> None:
        """As `Limited` has it."""
        self.answer_last(*_NO_ROOM)

    def abort(self) -> None:
        """As `Limited` has it."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @property
    def awaits_body(self) -> bool:
        """Whether the head of a request has arrived, and not all of its body."""
        return self._is_streaming

    def answer_last(self, status: str, why: str) -> None:
        """Answers the request that arrives in aiohttp's place, drops the rest of it, and ends the connection.

        There is no answer if an earlier request still has none, or the peer does not read.
        """
        self.is_refused = True
        transport = self.transport
        if transport is None or self._paused or self._unanswered != (1 if self._is_streaming else 0):
            self.abort()
            return
        self.transport = None  # so that aiohttp writes nothing more
        text = f'{{"error":"{why}"}}'
        fields = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close"
        transport.write(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{text}".encode())
        self._payload.set_exception(ConnectionResetError(why))
        self._loop.call_later(LINGER_SECONDS, transport.abort)

    @property
    def _is_streaming(self) -> bool:
        """Whether aiohttp has the head of a request, and not all of its body."""
        return not self._payload.is_eof()

    @property
    def _is_answering(self) -> bool:
        """Whether a whole request has no answer yet."""
        return self._unanswered > (1 if self._is_streaming else 0)


def count_answers(server: web.Server) -> None:
    """Lets the connections of a server know when its handler has made an answer."""
    answer = server.request_handler

    async def answer_and_tell(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await answer(request)
        finally:
            cast("Connection", request.protocol).end_answer()

    server.request_handler = cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", answer_and_tell)


def _ends_request(data: bytes, body_bytes: int, *, has_head: bool) -> bool:
    """Whether data that completed a request ends with it; `body_bytes` of it were of the body."""
    head_bytes = data.find(HEAD_END) + len(HEAD_END) if has_head else 0
    return not data or data.endswith(HEAD_END) or head_bytes + body_bytes == len(data)
