"""Opens a listening address, and closes it without losing a request."""

import asyncio
import socket
import ssl
from typing import cast

import structlog
from aiohttp import web

from extender.errors import ConfigError
from extender.server.acceptor import Acceptor, Connect
from extender.server.callers import CallerConnection, Callers, Limits
from extender.server.connection import DirectServer, PlainPeer

log = structlog.get_logger()

BACKLOG = 1024
# After it a peer that has not ended its TLS handshake is dropped. Callers are on the cluster's own network.
HANDSHAKE_SECONDS = 10.0


class Listener:
    """A bound address whose requests `runner` answers.

    `name` is for logs; `address` is the bound host and port, with the real port if port 0 was requested.
    """

    def __init__(self, name: str, runner: web.BaseRunner, address: str) -> None:
        self.name = name
        self.address = address
        self._runner = runner

    async def close(self) -> None:
        """Stops accepting, waits for requests in flight (up to the runner's shutdown timeout), then closes."""
        await self._runner.cleanup()
        log.info("listener.closed", listener=self.name, address=self.address)


async def open_listener(
    name: str,
    runner: web.BaseRunner,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    setting: str = "",
    limits: Limits = Limits(),  # noqa: B008  # it is frozen
) -> Listener:
    """Binds `host:port` (port 0 takes a free one) and answers requests there.

    `setting` is the path of the setting that errors name; empty: `listen` of the section `name`.

    An empty host is every address of the machine, of IPv4 and of IPv6 as far as it has them. `limits` say how many
    connections, and with a `DirectServer` how many bytes of bodies, its callers may have.

    Raises:
        ConfigError: the address cannot be bound.
    """
    await runner.setup()
    try:
        await _Site(runner, host, port, tls, Callers(name, limits, asyncio.get_running_loop().time)).start()
    except OSError as exc:
        await runner.cleanup()
        where = setting or f"{name}.listen"
        raise ConfigError(f"{where}: cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    bound_host, bound_port = runner.addresses[0][:2]
    address = f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    log.info("listener.opened", listener=name, address=address, tls=tls is not None)
    return Listener(name, runner, address)


class _Site(web.BaseSite):
    """A bound address whose connections are counted by caller, which aiohttp's own sites cannot do."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext | None, callers: Callers
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port = host, port
        self._callers = callers
        self._acceptor: Acceptor | None = None

    @property
    def name(self) -> str:
        """The address as it was requested."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Binds the address and accepts connections.

        Raises:
            OSError: the address cannot be bound.
        """
        await super().start()
        sockets = await _bind(self._host, self._port) if self._host else [_bind_every_address(self._port)]
        self._acceptor = Acceptor(
            sockets, self._callers, self._connect(), tls=self._ssl_context, handshake_seconds=HANDSHAKE_SECONDS
        )
        self._server = cast("asyncio.AbstractServer", self._acceptor)  # of which aiohttp uses `sockets` and `close`
        self._acceptor.start()

    async def stop(self) -> None:
        """Accepts nobody any more."""
        if self._acceptor:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await super().stop()

    def _connect(self) -> Connect:
        """What makes the protocol objects of connections."""
        server = cast("web.Server", self._runner.server)  # BaseSite has checked that there is one
        if isinstance(server, DirectServer):
            return server.connect

        def connect(connection: CallerConnection) -> asyncio.BaseProtocol:
            protocol = server()
            connection.peer = PlainPeer(protocol, connection.accepted_at)
            return protocol

        return connect


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
