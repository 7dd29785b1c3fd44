"""Opens a listening address, and closes it without losing a request."""

import asyncio
import errno
import socket
import ssl
from contextlib import suppress

import structlog

from extender.background import end_background, start_background
from extender.errors import ConfigError
from extender.server.connection import REFUSALS, Connection, Connections, Limits
from extender.server.routes import Responder

log = structlog.get_logger()

BACKLOG = 1024
# The kernel doubles it, and hands over so much at once at most. The buffers of uvloop and OpenSSL stay as large as what
# once came at once: a TLS connection takes up to 145 KB, instead of 350 KB. The price is the time of large reviews: on
# loopback 0.2 ms more for one of 60 KB, 5 ms for 300 KB.
_TLS_RECEIVED_BYTES = 32 * 1024
# For whoever is accepted as the listener closes: the handshake and the request that it has sent.
_LAST_HANDSHAKES_SECONDS = 0.5
# The kernel could not accept a connection, for example since the process has no file descriptor left.
_PAUSE_SECONDS = 0.5
_BETWEEN_LOOKS_SECONDS = 1.0


class Listener:
    """Listening sockets whose requests `service` answers.

    `name` is for logs; `address` is the bound host and port, with the real port if port 0 was requested. asyncio's own
    servers cannot refuse a connection before its TLS handshake, which takes more memory than most connections.
    """

    def __init__(
        self,
        name: str,
        service: Responder,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
        connections: Connections,
        drain_seconds: float,
    ) -> None:
        """Accepts connections from now on."""
        self.name = name
        host, port = sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._service = service
        self._drain_seconds = drain_seconds
        self._tls = tls
        self.connections = connections
        self._sockets = sockets
        self._opening: set[asyncio.Task[None]] = set()
        for listening in sockets:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # also of those that are accepted
            if tls:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TLS_RECEIVED_BYTES)
        works = [self._end_late(), *(self._accept(listening) for listening in sockets)]
        self._tasks = [start_background(work, f"listener-{name}") for work in works]

    async def close(self) -> None:
        """Stops accepting, waits for requests in flight (up to `drain_seconds`), then closes."""
        await end_background(*self._tasks)
        for listening in self._sockets:
            self._accept_last(listening)
            listening.close()
        if self._opening:
            _, late = await asyncio.wait(self._opening, timeout=_LAST_HANDSHAKES_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.connections.drain(self._drain_seconds)
        log.info("listener.closed", listener=self.name, address=self.address)

    async def _accept(self, listening: socket.socket) -> None:
        """Accepts connections, one at each turn of the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as exc:
                REFUSALS["descriptors" if exc.errno in (errno.EMFILE, errno.ENFILE) else "connections"].inc()
                log.warning("listener.paused", listener=self.name, error=exc.strerror or str(exc))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._begin(accepted)
                await asyncio.sleep(0)

    def _accept_last(self, listening: socket.socket) -> None:
        """Accepts those who are in the kernel's queue already."""
        with suppress(OSError):  # there are no more
            for _ in range(BACKLOG):
                accepted, _ = listening.accept()
                accepted.setblocking(False)
                self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        if not self.connections.has_room():
            accepted.close()
            return
        connection = Connection(self._service, self.connections)
        connection.handshake = task = asyncio.create_task(self._open(accepted, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, connection: Connection) -> None:
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

    async def _end_late(self) -> None:
        while True:
            await self.connections.are_awaited.wait()
            await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
            self.connections.end_late()


async def open_listener(
    name: str,
    service: Responder,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    setting: str = "",
    limits: Limits = Limits(),  # noqa: B008  # it is frozen
    drain_seconds: float = 1.0,
) -> Listener:
    """Binds `host:port` (port 0 takes a free one) and answers requests there.

    `setting` is the path of the setting that errors name; empty: `listen` of the section `name`.

    An empty host is every address of the machine, of IPv4 and of IPv6 as far as it has them.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        sockets = await _bind(host, port) if host else [_bind_every_address(port)]
    except OSError as exc:
        where = setting or f"{name}.listen"
        raise ConfigError(f"{where}: cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    listener = Listener(
        name, service, sockets, tls, Connections(limits, asyncio.get_running_loop().time), drain_seconds
    )
    log.info("listener.opened", listener=name, address=listener.address, tls=tls is not None)
    return listener


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a name, or for an address.

    Raises:
        OSError: one of the addresses cannot be bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _bind_every_address(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, or for IPv4 alone on a machine without IPv6.

    Two sockets with port 0 would have different ports.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
