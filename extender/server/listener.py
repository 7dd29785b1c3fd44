"""Opens a listening address, and closes it without losing a request."""

import socket
import ssl

import structlog
from aiohttp import web

from extender.errors import ConfigError

log = structlog.get_logger()

BACKLOG = 1024


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
    name: str, runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext | None = None
) -> Listener:
    """Binds `host:port` (port 0 takes a free one) and answers requests there.

    An empty host is every address of the machine, of IPv4 and of IPv6 as far as it has them.

    Raises:
        ConfigError: the address cannot be bound.
    """
    await runner.setup()
    try:
        if host:
            site: web.BaseSite = web.TCPSite(runner, host, port, ssl_context=tls, backlog=BACKLOG)
        else:
            site = web.SockSite(runner, _bind_every_address(port), ssl_context=tls, backlog=BACKLOG)
        await site.start()
    except OSError as exc:
        await runner.cleanup()
        raise ConfigError(f"{name}.listen: cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    bound_host, bound_port = runner.addresses[0][:2]
    address = f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    log.info("listener.opened", listener=name, address=address, tls=tls is not None)
    return Listener(name, runner, address)


def _bind_every_address(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, or for IPv4 alone on a machine without IPv6.

    asyncio would open a socket for each family, which with port 0 would have different ports.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
