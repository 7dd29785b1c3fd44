"""Addresses to which pod authors and registries could direct the client, and a trap that counts connections to them.

`{port}` in a row is the port of the listening sockets.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

# Image strings that lead inside, each in another way; `test_addresses` has every spelling of every address.
IMAGES = (
    "127.0.0.1:{port}/x",
    "2130706433:{port}/x",
    "0x7f.1:{port}/x",
    "0.0.0.0:{port}/x",
    "LocalHost:{port}/x",
    "[::1]:{port}/x",
    "[::ffff:7f00:1]:{port}/x",
    "[64:ff9b::7f00:1]:{port}/x",
    "169.254.169.254/latest/meta-data",
    "metadata.google.internal/computemetadata/v1",
    "kubernetes.default.svc/api/v1",
    "evil.example:{port}/x",
    "both.example:{port}/x",
    "metadata.example/x",
    "EVIL.example:{port}/x",
    "DENIED.example.com:5000/x",
)

# What the names of IMAGES that are not addresses resolve to.
NAMES: Mapping[str, tuple[str, ...]] = {
    "evil.example": ("127.0.0.1",),
    "both.example": ("127.0.0.1", "::1"),
    "metadata.example": ("169.254.169.254", "fd00:ec2::254"),
    "localhost": ("127.0.0.1", "::1"),
}

# URLs that a registry names as its token server, or redirects to.
URLS = (
    "http://127.0.0.1:{port}/token",
    "https://127.0.0.1:{port}/token",
    "//127.0.0.1:{port}/token",
    "http://127.0.0.1.:{port}/token",
    "http://①②⑦.0.0.1:{port}/token",
    "http://%31%32%37.0.0.1:{port}/token",
    "http://1.1.1.1@127.0.0.1:{port}/token",
    "http://LOCALHOST.:{port}/token",
    "http://[::ffff:127.0.0.1]:{port}/token",
    "http://[fe80::1%25lo]:{port}/token",
    "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "http://evil.example:{port}/token",
    "https://denied.example.com/token",
)

# Similar URLs that cannot be requested, or that lead back to the registry when they are parsed by RFC 3986.
NO_URLS = ("file:///etc/passwd", "http://[]@127.0.0.1:{port}/", "http://127.0.0.1:99999/token", "\\\\127.0.0.1\\x")


class Trap:
    """Sockets that listen on this host, IPv4 and IPv6, at one `port`; `connections` counts the connections accepted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0

    async def count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        self.connections += 1
        writer.close()


@asynccontextmanager
async def open_trap() -> AsyncIterator[Trap]:
    """Opens a trap until the context is left. It listens on 0.0.0.0, which is every address of this host."""
    trap = Trap(0)
    async with await asyncio.start_server(trap.count, "0.0.0.0", 0) as server:
        trap.port = server.sockets[0].getsockname()[1]
        if not socket.has_ipv6:
            yield trap
            return
        async with await asyncio.start_server(trap.count, "::1", trap.port):
            yield trap


class Network:
    """The uses of the network: `dialled` addresses, and `resolved` names."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.resolved: list[str] = []


@contextmanager
def watched_network(names: Mapping[str, tuple[str, ...] | Iterator[tuple[str, ...]]]) -> Iterator[Network]:
    """Resolves only `names`, and connects only to loopback. A name with an iterator has a new answer each time."""
    network = Network()
    getaddrinfo, connect = socket.getaddrinfo, asyncio.SelectorEventLoop.sock_connect

    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as `getaddrinfo`
        answers = names.get(host.lower())
        if answers is None and not _is_numeric(host):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        network.resolved.append(host)
        addresses = (host,) if answers is None else answers if isinstance(answers, tuple) else next(answers)
        return [row for address in addresses for row in getaddrinfo(address, *args, **kwargs)]

    async def dial(loop: asyncio.SelectorEventLoop, sock: socket.socket, address: tuple[str, int]) -> None:
        network.dialled.append(address[0])
        if address[0] not in ("127.0.0.1", "::1"):
            raise ConnectionRefusedError
        await connect(loop, sock, address)

    with patch.object(socket, "getaddrinfo", resolve), patch.object(asyncio.SelectorEventLoop, "sock_connect", dial):
        yield network


def _is_numeric(host: str) -> bool:
    """Whether the C library parses this as an address."""
    try:
        socket.inet_aton(host)
    except OSError:
        return ":" in host
    return True
