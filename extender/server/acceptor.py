"""Accepts connections at listening sockets, each only after its caller was found to have room for it.

asyncio's own servers ask nobody before the TLS handshake, and an unfinished handshake takes more memory than most
connections.
"""

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable, Sequence

import structlog

from extender.metrics import counter
from extender.server.callers import CallerConnection, Callers, Proof

log = structlog.get_logger()

# Connections accepted before other work of the event loop gets its turn; the others stay in the kernel's queue.
_AT_ONCE = 8
# Whoever is accepted as the listener closes has this long for the handshake and the request that it has begun.
_LAST_HANDSHAKES_SECONDS = 0.5
_LAST_ACCEPTED = 1024  # as many as the kernel's queue has
_BETWEEN_SWEEPS_SECONDS = 15.0
_BETWEEN_HANDSHAKES_SECONDS = 0.05
# The kernel doubles it, and hands over so much at once at most. The buffers of uvloop and OpenSSL stay as large as what
# once came at once: a TLS connection takes up to 145 KB, instead of 350 KB. The price is the time of large reviews: on
# loopback 0.2 ms more for one of 60 KB, 5 ms for 300 KB.
_RECEIVED_BYTES = 32 * 1024
# The kernel could not accept a connection, for example since the process has no file descriptor left.
_PAUSE_SECONDS = 0.5

PAUSES = counter(
    "multiarch_listener_pauses_total",
    "Half seconds in which a listener could accept nobody.",
    "reason",
    ("descriptors", "other"),
)

Connect = Callable[[CallerConnection], asyncio.BaseProtocol]
"""Makes the protocol object of a connection that was accepted."""


class _CountedSocket(socket.socket):
    """A socket that tells once when its descriptor is given up: asyncio closes it, uvloop detaches it."""

    on_release: Callable[[], object]

    def close(self) -> None:
        super().close()
        self._release()

    def detach(self) -> int:
        descriptor = super().detach()
        self._release()
        return descriptor

    def _release(self) -> None:
        """Also forgets whom it tells, who knows the socket too: the garbage collector would have to find the circle."""
        on_release, self.on_release = self.on_release, bool
        on_release()


class Acceptor:
    """The listening sockets of one listener. `connect` makes the protocol objects, which with `tls` speak inside it."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        callers: Callers,
        connect: Connect,
        *,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self.sockets = tuple(sockets)
        self._callers = callers
        self._connect = connect
        self._tls = tls
        self._handshake_seconds = handshake_seconds if tls else None
        self._loop = asyncio.get_running_loop()
        self._opening: dict[CallerConnection, asyncio.Task[None]] = {}
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Accepts connections from now on."""
        for listening in self.sockets:
            listening.setblocking(False)
            if self._tls:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
            self._loop.add_reader(listening, self._accept, listening)
        self._sweep()
        self._begin_handshakes(self._loop.time())

    def close(self) -> None:
        """Accepts those who are in the kernel's queue already, and nobody after them."""
        sockets, self.sockets = self.sockets, ()
        for timer in self._timers.values():
            timer.cancel()
        for listening in sockets:
            self._loop.remove_reader(listening)
            for _ in range(_LAST_ACCEPTED):
                if not self._accept_one(listening):
                    break
            listening.close()
        self._callers.handshakes.begin_all()

    async def wait_closed(self) -> None:
        """Waits for handshakes under way, for a moment, and ends those that are not done then."""
        if self._opening:
            await asyncio.wait(self._opening.values(), timeout=_LAST_HANDSHAKES_SECONDS)
            for task in self._opening.values():
                task.cancel()
            await asyncio.gather(*self._opening.values(), return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept_one(listening):
                return

    def _accept_one(self, listening: socket.socket) -> bool:
        """Accepts a connection; returns whether there may be another one."""
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as exc:
            self._pause(listening, exc)
            return False
        connection = self._callers.admit(address[0])
        if connection is None:
            accepted.close()
            return True
        counted = _CountedSocket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        counted.on_release = connection.leave
        counted.setblocking(False)
        begin = functools.partial(self._begin, counted, connection)
        if self._tls and self._callers.proof in (Proof.TOKEN, Proof.CERTIFICATE):
            connection.close = counted.close
            self._callers.handshakes.add(connection.caller.address, connection, begin)
        else:
            begin()
        return True

    def _begin(self, accepted: socket.socket, connection: CallerConnection) -> None:
        self._opening[connection] = task = self._loop.create_task(self._open(accepted, connection))
        task.add_done_callback(lambda _task: self._opening.pop(connection))

    async def _open(self, accepted: socket.socket, connection: CallerConnection) -> None:
        """Makes the connection's transport and protocol, and ends the handshake."""
        if not connection.is_counted:  # it was closed for another one before this task began
            accepted.close()
            return
        protocol = self._connect(connection)
        opening = self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_seconds,
        )
        connection.close = self._opening[connection].cancel
        try:
            transport, _ = await opening
        except BaseException as exc:
            # No event loop tells it of a handshake that failed. aiohttp's protocol and its parser know each other, and
            # so do asyncio's future and the frames of the error: the garbage collector would have to find the circles.
            protocol.connection_lost(None)
            exc.__traceback__ = None
            connection.leave()
            if not isinstance(exc, OSError):  # as is ssl.SSLError, and what a deadline raises
                raise
        else:
            connection.close = transport.abort
            if self._callers.proof is Proof.CERTIFICATE:
                connection.set_proven()

    def _pause(self, listening: socket.socket, exc: OSError) -> None:
        """Leaves connections in the kernel's queue for a while, instead of failing for each of them all the time."""
        PAUSES["descriptors" if exc.errno in (errno.EMFILE, errno.ENFILE) else "other"].inc()
        log.warning("listener.paused", address=listening.getsockname()[0], error=exc.strerror or str(exc))
        if listening in self.sockets:
            self._loop.remove_reader(listening)
            self._timers[listening] = self._loop.call_later(
                _PAUSE_SECONDS, self._loop.add_reader, listening, self._accept, listening
            )

    def _begin_handshakes(self, due: float) -> None:
        now = self._loop.time()
        self._callers.close_some()
        self._callers.handshakes.begin_some(now - due)
        due = now + _BETWEEN_HANDSHAKES_SECONDS
        self._timers[self._begin_handshakes] = self._loop.call_at(due, self._begin_handshakes, due)

    def _sweep(self) -> None:
        self._callers.close_idle()
        self._timers[self] = self._loop.call_later(_BETWEEN_SWEEPS_SECONDS, self._sweep)
