"""Listeners and their connections: what these may take together, and how a request is answered.

A usual request, a POST as Go's and aiohttp's clients write it, is answered here: parsing it as aiohttp does costs more
than most decisions. At any other, the connection is handed over to aiohttp's server, which answers that request and
ends the connection. One request at a time: if more than that comes, its answer ends the connection too.

Nothing here distinguishes callers: a certificate authority of clients or a network policy does. When a listener
is full, what is least likely to be of use gives way. An idle connection may stay until then; the kernel finds those
whose other side is gone.
"""

import asyncio
import errno
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Literal, cast

import msgspec
import structlog
from aiohttp import web

from extender.background import end_background, start_background
from extender.errors import ConfigError
from extender.machine import BACKLOG
from extender.metrics import counter
from extender.server.routes import Answer, Post, Responder, head_of_answer, problem, response_of, split_request

log = structlog.get_logger()

MIB = 1024 * 1024

# A new connection has this long for its TLS handshake and the head of its first request, and one in use for the rest of
# a head that has begun.
HEAD_SECONDS = 10.0
# A body that has begun arrives within this, whatever its size. The API server waits for an answer for 30 s at most.
BODY_SECONDS = 30.0
# What was written is read within this, or the connection ends.
ANSWER_SECONDS = 30.0
# A connection that is new when the listener closes has this long for its handshake and the request that it has sent.
LAST_REQUESTS_SECONDS = 0.5
# After an answer that came before the end of its request, what still arrives is dropped for so long. If the connection
# were closed at once, the kernel would say so to the caller, and the answer would be lost.
LINGER_SECONDS = 1.0

REFUSALS = counter(
    "multiarch_listener_refusals_total",
    "Connections that were refused or ended, by what there was too much of; descriptors: the process had none left.",
    "reason",
    ("connections", "bytes", "time", "descriptors"),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one listener: its connections, the bytes of a body, and those of all requests and answers that are kept.

    Bodies are kept until the work on them ends, and answers until they are read.
    """

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

# A longer answer is passed to the transport after its head instead of being copied behind it, which makes two packets:
# the first wakes the caller for a head alone. 500 names are 19 KB. Not by `writelines`, after which asyncio does not
# pause the protocol before Python 3.12.9 and 3.13.2 (CVE-2024-12254).
_COPIED_BYTES = 64 * 1024
_QUOTED_CHARACTERS = 200  # of what aiohttp says of a request
_NO_ROOM, _LATE = 503, 408
_WHY = {
    _NO_ROOM: "the bodies of other requests take all the room that there is",
    _LATE: "the body did not arrive in time",
}


class _Arriving(msgspec.Struct, eq=False):
    """The phase in which the body of a usual request arrives."""

    post: Post
    head: bytes
    missing_bytes: int
    pieces: list[bytes]  # joined once, as a body may have 80 MB


class _HandedOver(msgspec.Struct, eq=False):
    """The phase in which a request arrives that aiohttp reads.

    `reading` waits for its body. `refusal` is the status to refuse it with; what still arrives is then dropped.
    """

    reading: asyncio.Timeout | None = None
    refusal: int = 0


# idle: no part of a request has arrived that is not answered. answering: a whole one has no answer yet; answering last:
# and something has come behind it, or its caller sends nothing more. ending: what still arrives is dropped.
_Phase = Literal["idle", "answering", "answering last", "ending"] | _Arriving | _HandedOver


class Connection(asyncio.Protocol):
    """One connection of a listener."""

    def __init__(self, listener: "Listener") -> None:
        """Counts itself as one of the listener's, until `connection_lost`."""
        self.handshake: asyncio.Task[None] | None = None  # while there is no transport
        self.pending_bytes = 0
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._phase: _Phase = "idle"
        self._is_unread = False  # whether what was written waits to be read
        self._handler: web.RequestHandler | None = None  # aiohttp's, once the connection is handed over
        listener.add(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request has arrived that has no answer, and every answer is read."""
        return not (self.is_answering or isinstance(self._phase, _Arriving) or self.pending_bytes)

    @property
    def is_answering(self) -> bool:
        """Whether a whole request has no answer yet, whatever has become of the connection."""
        return self._phase in ("answering", "answering last")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts itself as closed."""
        self._listener.remove(self)
        self._transport = None
        if isinstance(self._phase, _Arriving):
            self._phase = "ending"
        if self._handler:
            self._handler.connection_lost(exc)
            self._handler = None

    def eof_received(self) -> bool:
        """Ends the connection, after the answer if a whole request has arrived; TLS has no such end."""
        if self._transport is None or self._transport.get_extra_info("ssl_object"):
            return False
        match self._phase:
            case "answering" | "answering last":
                self._phase = "answering last"
                return True
            case _HandedOver(reading=asyncio.Timeout()):
                return False
        return self._handler is not None

    def pause_writing(self) -> None:
        """Counts what is not read yet as kept, with a deadline, and reads nothing more until it is read."""
        if self._transport is None:
            return
        if not self._handler:
            self._transport.pause_reading()
        self._is_unread = True
        self._listener.reserve_for_answer(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Counts the answer as read. Reads again, or ends what has had its last answer."""
        self._is_unread = False
        self._listener.note_answered(self)
        if self._handler:
            self._listener.await_request(self, HEAD_SECONDS)  # for aiohttp to end it
        elif self._transport:
            self._transport.resume_reading()
            if self._phase == "ending":
                self._linger()

    def data_received(self, data: bytes) -> None:
        """Answers, keeps the data for later, or passes it to aiohttp."""
        match self._phase:
            case "idle":
                self._begin_request(data)
            case _Arriving() as body:
                self._add_piece(body, data)
            case "answering":
                self._phase = "answering last"
            case _HandedOver(refusal=0):
                handler = self._handler
                self._listener.reserve(self, len(data))
                if handler:
                    handler.data_received(data)
            case _HandedOver() | "ending" if self._handler:
                self._handler.data_received(data)

    def refuse(self, status: int) -> None:
        """Ends it with this answer to the request that is arriving; without one where another waits to be read."""
        if self._is_unread:
            self.abort()
        elif isinstance(self._phase, _HandedOver):
            self._phase.refusal = status
            self._listener.await_request(self, HEAD_SECONDS)  # for aiohttp to end it
            if self._phase.reading:
                self._phase.reading.reschedule(0.0)
        else:
            self._write_last(problem(status, _WHY[status]))

    def expire(self) -> None:
        """Ends it, as the request that is arriving is late."""
        REFUSALS["time"].inc()
        self._listener.free(self)
        match self._phase:
            case _Arriving() | _HandedOver(reading=asyncio.Timeout(), refusal=0):
                self.refuse(_LATE)
            case _:
                self.abort()

    def close(self) -> None:
        """Ends it once what was written is sent, and counts it no longer."""
        self._listener.remove(self)
        if self._transport:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Ends it without waiting for the other side, and counts it no longer."""
        self._listener.remove(self)
        if self._transport:
            self._transport.abort()
        elif self.handshake:
            self.handshake.cancel()

    def _begin_request(self, data: bytes) -> None:
        """Takes the head of a usual request, or hands the connection over."""
        head, path, length = split_request(data) or (b"", "", 0)
        post = self._listener.service.posts.get(path)
        missing_bytes = len(head) + length - len(data)
        if post is None or length > self._listener.limits.body_bytes or missing_bytes < 0:
            self._hand_over(data)
            return
        piece = data[len(head) :]
        if missing_bytes:
            self._listener.await_request(self, BODY_SECONDS)
            self._phase = body = _Arriving(post, head, length, [])
            self._add_piece(body, piece)
        elif self._listener.reserve(self, length):
            self._start_answer(post, piece)

    def _add_piece(self, body: _Arriving, data: bytes) -> None:
        """Keeps a part of a body, and answers once it is whole."""
        body.missing_bytes -= len(data)
        body.pieces.append(data)
        if not self._listener.reserve(self, len(data)) or body.missing_bytes > 0:
            return
        del data
        whole = b"".join(body.pieces)
        body.pieces.clear()
        if body.missing_bytes:  # something came behind it
            self._listener.free(self)
            self._hand_over(body.head + whole)
            return
        self._start_answer(body.post, whole)

    def _start_answer(self, post: Post, body: bytes) -> None:
        self._arrived()
        answering = asyncio.get_running_loop().create_task(self._answer(post, body))
        self._listener.tasks.add(answering)
        answering.add_done_callback(self._note_answer)

    async def _answer(self, post: Post, body: bytes) -> None:
        """Writes the answer. Requests that come in one turn of the event loop are answered one after the other."""
        answer = await post(body)
        is_last, is_closing = self._phase == "answering last", self._listener.is_closing
        self._answered("idle")
        if is_last:
            self._write_last(answer)
            return
        self._write(answer, is_closing=is_closing)
        if is_closing:
            self.close()

    def _note_answer(self, answering: "asyncio.Task[None]") -> None:
        """Ends the connection if there is no answer."""
        self._listener.tasks.discard(answering)
        if answering.cancelled() or answering.exception():
            self._answered("ending")
            self.abort()

    def _write(self, answer: Answer, *, is_closing: bool) -> None:
        if self._transport is None:
            return
        head = head_of_answer(answer.status, len(answer.text), is_closing=is_closing)
        if len(answer.text) < _COPIED_BYTES:
            self._transport.write(head + answer.text)
        else:
            self._transport.write(head)
            self._transport.write(answer.text)

    def _write_last(self, answer: Answer) -> None:
        """Answers, drops what still arrives, and ends the connection."""
        self._phase = "ending"
        self._write(answer, is_closing=True)
        if not self._is_unread:
            self._linger()

    def _linger(self) -> None:
        """Aborts the connection after `LINGER_SECONDS`."""
        if self._transport:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def _arrived(self) -> None:
        """Notes that a request has arrived."""
        self._phase = "answering"
        self._listener.note_asked(self)

    def _answered(self, phase: Literal["idle", "ending"]) -> None:
        """Notes that a request has its answer, or will have none."""
        self._phase = phase
        self._listener.note_answered(self)

    def _hand_over(self, data: bytes) -> None:
        """Gives the connection to aiohttp, which answers one request and ends it."""
        if self._transport is None:
            return
        if not self._listener.awaits_request(self):
            self._listener.await_request(self, HEAD_SECONDS)
        self._phase = phase = _HandedOver()
        self._handler = _RequestHandler(web.Server(functools.partial(self._handle, phase)), self._listener.name)
        self._handler.connection_made(self._transport)
        self.data_received(data)

    async def _handle(self, phase: _HandedOver, request: web.BaseRequest) -> web.StreamResponse:
        """Answers a request that aiohttp has the head of."""
        task = asyncio.current_task()
        assert task is not None, "aiohttp calls this in one"  # noqa: S101
        self._listener.tasks.add(task)
        try:
            body = await self._read_body(phase, request)
            if isinstance(body, Answer):
                log.warning(
                    "request.rejected", listener=self._listener.name, status=body.status, why=body.text.decode()
                )
                response = response_of(body)
            else:
                self._arrived()
                response = await self._listener.service.respond(request, body)
            response.force_close()
            return response
        finally:
            self._listener.tasks.discard(task)
            self._answered("ending")
            self._listener.await_request(self, HEAD_SECONDS)  # for aiohttp to end it

    async def _read_body(self, phase: _HandedOver, request: web.BaseRequest) -> bytes | Answer:
        """The body, once it is whole; the answer if it will not be."""
        limit_bytes = self._listener.limits.body_bytes
        too_large = problem(413, f"the body is larger than {limit_bytes} bytes")
        if (request.content_length or 0) > limit_bytes:
            return too_large
        if not request.content.is_eof():
            self._listener.await_request(self, BODY_SECONDS)
            if request.headers.get("Expect", "").lower() == "100-continue" and self._transport:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(None) as phase.reading:
                while not phase.refusal and (piece := await request.content.readany()):
                    size += len(piece)
                    if size > limit_bytes:
                        return too_large
                    pieces.append(piece)
        except TimeoutError:
            pass  # it is refused
        except (web.RequestPayloadError, ConnectionError):
            return problem(400, "the body is not what its headers say, or ended early")
        finally:
            phase.reading = None
        return problem(phase.refusal, _WHY[phase.refusal]) if phase.refusal else b"".join(pieces)


class _RequestHandler(web.RequestHandler):
    """aiohttp's, but for what it says of a request that cannot be read."""

    def __init__(self, server: web.Server, listener: str) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast("logging.Logger", None),  # no request is logged
            lingering_time=LINGER_SECONDS,
            # A compressed body stays so, and is no JSON: of what it would become nothing is counted.
            auto_decompress=False,
        )
        self._listener = listener

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that is malformed, or on which we have failed."""
        if status == HTTPStatus.BAD_REQUEST:
            why = f"the request cannot be read: {(message or '').partition(chr(10))[0][:_QUOTED_CHARACTERS]}"
            log.warning("request.rejected", listener=self._listener, status=status, why=why)
        else:
            why = "internal error"
            log.error("request.failed", listener=self._listener, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        response = response_of(problem(status, why))
        response.force_close()
        return response


# The kernel doubles it, and hands over so much at once at most. The buffers of uvloop and OpenSSL stay as large as what
# once came at once: a TLS connection takes up to 145 KB, instead of 350 KB. The price is the time of large reviews: on
# loopback 0.2 ms more for one of 60 KB, 5 ms for 300 KB.
_TLS_RECEIVED_BYTES = 32 * 1024
# The kernel could not accept a connection, for example since the process has no file descriptor left.
_PAUSE_SECONDS = 0.5
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What accept(2) says when there are too few resources. All else that it says concerns one connection."""


class Listener:
    """A service's connections, those in their TLS handshake among them.

    asyncio's own servers cannot refuse a connection before its TLS handshake, which takes more memory than most
    connections. `name` is for logs; `address` is the bound host and port, with the real port if port 0 was requested.
    """

    def __init__(self, name: str, service: Responder, limits: Limits, *, drain_seconds: float = 0.0) -> None:
        self.name = name
        self.address = ""
        self.service = service
        self.limits = limits
        self.pending_bytes = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        """Handshakes, and what makes answers now, also for connections that have been lost."""
        self._drain_seconds = drain_seconds
        self._tls: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[Connection, None] = {}
        self._silent: dict[Connection, None] = {}  # that have never asked, the oldest first
        self._idle: dict[Connection, None] = {}  # that have their answers, the one that has had it longest first
        # The deadlines of those whose request or whose reading is awaited, the one that began first first.
        self._awaited: dict[Connection, asyncio.TimerHandle] = {}
        self._is_draining = False
        self._left = asyncio.Event()

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._open)

    @property
    def is_closing(self) -> bool:
        """Whether each answer is to end its connection."""
        return self._is_draining or self.service.is_draining()

    def listen(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accepts connections from now on."""
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # also of those that are accepted
        if tls:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TLS_RECEIVED_BYTES)
        self._socket, self._tls = listening, tls
        self._accepting = start_background(self._accept(listening), f"listener-{self.name}")

    async def close(self) -> None:
        """Stops accepting, waits for requests in flight (up to `drain_seconds`), then closes.

        Whoever is in the kernel's queue already is answered too.
        """
        if self._accepting and self._socket:
            await end_background(self._accepting)
            with suppress(OSError):  # there are no more
                for _ in range(BACKLOG):
                    accepted, _ = self._socket.accept()
                    accepted.setblocking(False)
                    self._begin(accepted)
            self._socket.close()
        await self._drain()
        log.info("listener.closed", listener=self.name, address=self.address)

    def add(self, connection: Connection) -> None:
        """Counts a new one, and starts the deadline of its first request."""
        self._open[connection] = self._silent[connection] = None
        self.await_request(connection, HEAD_SECONDS)

    def remove(self, connection: Connection) -> None:
        """Counts it as closed; calls after the first have no effect. What is worked on stays counted."""
        self._end_wait(connection)
        if not connection.is_answering:
            self.free(connection)
        for kind in (self._open, self._silent, self._idle):
            kind.pop(connection, None)
        self._left.set()

    def await_request(self, connection: Connection, seconds: float) -> None:
        """Starts the deadline of a head, of the body behind it, or of the reading of an answer."""
        if connection in self._open:
            if connection in self._awaited:
                self._awaited[connection].cancel()
            self._awaited[connection] = asyncio.get_running_loop().call_later(seconds, self._expire, connection)

    def awaits_request(self, connection: Connection) -> bool:
        """Whether the connection has a deadline."""
        return connection in self._awaited

    def note_asked(self, connection: Connection) -> None:
        """A request has arrived whole."""
        self._end_wait(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def note_answered(self, connection: Connection) -> None:
        """A request is answered, or the answer is read, and kept no longer."""
        self._end_wait(connection)
        self.free(connection)
        if connection in self._open:
            self._idle[connection] = None

    def reserve_for_answer(self, connection: Connection, size: int) -> None:
        """Counts bytes of an answer as kept until `note_answered`, and starts the deadline until when they are read."""
        self._idle.pop(connection, None)
        self.await_request(connection, ANSWER_SECONDS)
        self.reserve(connection, size)

    def reserve(self, connection: Connection, size: int) -> bool:
        """Counts bytes as kept until `free`; returns False if they are refused.

        When there are too many, that is refused which has waited longest for the rest of its request, or for its caller
        to read.
        """
        connection.pending_bytes += size
        self.pending_bytes += size
        while self.pending_bytes > self.limits.pending_bytes:
            refused = next((each for each in self._awaited if each.pending_bytes), connection)
            REFUSALS["bytes"].inc()
            self._end_wait(refused)
            self.free(refused)
            refused.refuse(_NO_ROOM)
            if refused is connection:
                return False
        return True

    def free(self, connection: Connection) -> None:
        """Counts the bytes of a request as kept no longer."""
        self.pending_bytes -= connection.pending_bytes
        connection.pending_bytes = 0

    def _expire(self, connection: Connection) -> None:
        self._end_wait(connection)
        connection.expire()

    def _end_wait(self, connection: Connection) -> None:
        deadline = self._awaited.pop(connection, None)
        if deadline:
            deadline.cancel()

    def _has_room(self) -> bool:
        """Whether there may be one more; ends one for it, that which has taken longest to ask.

        One that has asked before is ended only if all others have, and none that waits for its answer. Whoever opens
        hundreds a second ends its own: a handshake and a request take milliseconds.
        """
        if len(self._open) < self.limits.connections:
            return True
        REFUSALS["connections"].inc()
        slowest = next(iter(self._silent or self._idle), None)
        if slowest is None:
            return False
        slowest.abort()
        return True

    async def _accept(self, listening: socket.socket) -> None:
        """Accepts connections, one at each turn of the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:  # of one connection, which is gone
                    await asyncio.sleep(0)
                    continue
                REFUSALS["descriptors" if exc.errno in (errno.EMFILE, errno.ENFILE) else "connections"].inc()
                log.warning("listener.paused", listener=self.name, error=exc.strerror or str(exc))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._begin(accepted)
                await asyncio.sleep(0)

    def _begin(self, accepted: socket.socket) -> None:
        if not self._has_room():
            accepted.close()
            return
        connection = Connection(self)
        connection.handshake = task = asyncio.create_task(self._shake_hands(accepted, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _shake_hands(self, accepted: socket.socket, connection: Connection) -> None:
        """Makes the connection's transport, and ends the handshake."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls)
        except BaseException as exc:
            # No event loop tells it of a handshake that failed. asyncio's future and the frames of the error know each
            # other: the garbage collector would have to find the circle.
            connection.connection_lost(None)
            accepted.close()
            exc.__traceback__ = None
            if not isinstance(exc, OSError):  # as is ssl.SSLError
                raise
        finally:
            connection.handshake = None

    async def _drain(self) -> None:
        """Ends all connections: idle ones now, the others when they have their answer or the time is up."""
        self._is_draining = True
        now = asyncio.get_running_loop().time()
        end = now + self._drain_seconds
        have_asked = [each for each in self._open if each not in self._silent]
        await self._close_idle(have_asked, min(end, now + LAST_REQUESTS_SECONDS))
        await self._close_idle(self._open, end)
        for connection in [*self._open]:
            connection.abort()
        tasks = list(self.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.0, end - asyncio.get_running_loop().time()))
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close_idle(self, connections: Iterable[Connection], until: float) -> None:
        """Closes the idle ones of these, and waits until that time for all to end."""
        for connection in [each for each in connections if each.is_idle]:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self._open:
                    self._left.clear()
                    await self._left.wait()


def open_listener(
    name: str,
    service: Responder,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    bind: Callable[[str, int], socket.socket],
    limits: Limits = Limits(),  # noqa: B008  # it is frozen
    drain_seconds: float = 1.0,
) -> Listener:
    """Answers requests at `host:port`, which `bind` opens.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        listening = bind(host, port)
    except OSError as exc:
        raise ConfigError(f"{name}.listen: cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    listener = Listener(name, service, limits, drain_seconds=drain_seconds)
    listener.listen(listening, tls)
    log.info("listener.opened", listener=name, address=listener.address, tls=tls is not None)
    return listener
