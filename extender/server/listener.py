"""Opens a listening address, and closes it without losing a request."""

import asyncio
import functools
import socket
import ssl

import structlog
from aiohttp import web

from extender.errors import ConfigError

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
) -> Listener:
    """Binds `host:port` (port 0 takes a free one) and answers requests there.

    `setting` is the path of the setting that errors name; empty: `listen` of the section `name`.

    An empty host is every address of the machine, of IPv4 and of IPv6 as far as it has them.

    Raises:
        ConfigError: the address cannot be bound.
    """
    await runner.setup()
    try:
        await _Site(runner, host, port, tls).start()
    except OSError as exc:
        await runner.cleanup()
        where = setting or f"{name}.listen"
        raise ConfigError(f"{where}: cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    bound_host, bound_port = runner.addresses[0][:2]
    address = f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    log.info("listener.opened", listener=name, address=address, tls=tls is not None)
    return Listener(name, runner, address)


class _Site(web.BaseSite):
    """A bound address whose TLS handshakes have a deadline, which aiohttp's own sites cannot be given."""

    def __init__(self, runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port = host, port

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
        open_server = functools.partial(
            asyncio.get_running_loop().create_server,
            self._runner.server,
            ssl=self._ssl_context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._ssl_context else None,
            backlog=BACKLOG,
        )
        if self._host:
            self._server = await open_server(self._host, self._port)
        else:
            self._server = await open_server(sock=_bind_every_address(self._port))


def _bind_every_address(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, or for IPv4 alone on a machine without IPv6.

    asyncio would open a socket for each family, which with port 0 would have different ports.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
