"""The proxy in front of a server that answers each line with itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from testbed.tcp_proxy import LOOPBACK, TcpProxy, open_tcp_proxy


class Client:
    """A connection to the proxy; get it from `connected`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def echo(self, line: bytes) -> bytes:
        """What comes back of the line; nothing where the connection has ended."""
        try:
            self._writer.write(line)
            await self._writer.drain()
            return await self._reader.readline()
        except ConnectionError:
            return b""


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """A proxy to an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)
        await close(writer)

    server = await asyncio.start_server(echo, LOOPBACK, 0)
    async with server, open_tcp_proxy(server.sockets[0].getsockname()[1]) as opened:
        yield opened


@asynccontextmanager
async def connected(proxy: TcpProxy) -> AsyncIterator[Client]:
    """A client of the proxy."""
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, which may have been reset."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_bytes_pass_both_ways(proxy: TcpProxy) -> None:
    """And every connection is counted while it is open."""
    async with connected(proxy) as one, connected(proxy) as other:
        assert [await one.echo(b"a\n"), await other.echo(b"b\n"), await one.echo(b"c\n")] == [b"a\n", b"b\n", b"c\n"]
        assert proxy.connections == 2


async def test_a_reset_ends_what_is_open_and_nothing_else(proxy: TcpProxy) -> None:
    """The next connection is let through."""
    async with connected(proxy) as client:
        await client.echo(b"a\n")
        proxy.reset()
        assert await client.echo(b"b\n") == b""
    async with connected(proxy) as client:
        assert await client.echo(b"c\n") == b"c\n"


async def test_connections_are_refused_until_they_are_accepted_again(proxy: TcpProxy) -> None:
    """New ones are reset as open ones are."""
    async with connected(proxy) as client:
        await client.echo(b"a\n")
        proxy.refuse()
        assert await client.echo(b"b\n") == b""
    async with connected(proxy) as client:
        assert await client.echo(b"c\n") == b""
    proxy.accept()
    async with connected(proxy) as client:
        assert await client.echo(b"d\n") == b"d\n"
