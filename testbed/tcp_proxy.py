"""A TCP proxy between a client and a server on loopback, whose connections a test resets or refuses.

It forwards bytes and parses no protocol, so it works for TLS. It stands for whatever can break between the two: a load
balancer, a router, a node.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects with the server. Raises OSError."""


class TcpProxy:
    """The proxy, which listens on `port`. `open_tcp_proxy` and `open_relay` make it."""

    def __init__(self, port: int, connect: Connect, answer_seconds: float) -> None:
        self.port = port
        self._connect = connect
        self._answer_seconds = answer_seconds
        self._is_refusing = False
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """The number of open connections through the proxy."""
        return sum(not end.is_closing() for end in self._ends) // 2

    def reset(self) -> None:
        """Resets all current connections; new ones are accepted."""
        for end in self._ends:
            end.transport.abort()

    def refuse(self) -> None:
        """Resets all connections, and every new one until `accept` is called."""
        self._is_refusing = True
        self.reset()

    def accept(self) -> None:
        """Accepts connections again."""
        self._is_refusing = False

    async def carry(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Carries one connection from its start to its end."""
        try:
            if self._is_refusing:
                raise ConnectionAbortedError
            server_in, server_out = await self._connect()
        except OSError:
            client_out.transport.abort()
            return
        ends = {client_out, server_out}
        self._ends |= ends
        try:
            await asyncio.gather(_pump(client_in, server_out), _pump(server_in, client_out, self._answer_seconds))
        finally:
            self._ends -= ends


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seconds: float = 0.0) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            await asyncio.sleep(seconds)
            sink.write(chunk)
            await sink.drain()
    sink.close()  # bytes written already are still sent


@asynccontextmanager
async def open_tcp_proxy(server_port: int, *, answer_seconds: float = 0.0) -> AsyncIterator[TcpProxy]:
    """Runs a proxy to that port on loopback; answers take so much longer. All connections are reset at the end."""
    listening = socket.create_server((LOOPBACK, 0))
    connect = partial(asyncio.open_connection, LOOPBACK, server_port)
    async with open_relay(listening, connect, answer_seconds=answer_seconds) as proxy:
        yield proxy


@asynccontextmanager
async def open_relay(
    listening: socket.socket, connect: Connect, *, answer_seconds: float = 0.0
) -> AsyncIterator[TcpProxy]:
    """Runs a proxy from that socket, which it closes, to wherever `connect` connects."""
    proxy = TcpProxy(listening.getsockname()[1], connect, answer_seconds)
    carried: set[asyncio.Task[None]] = set()

    def begin(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.carry(client_in, client_out))
        carried.add(task)
        task.add_done_callback(carried.discard)

    server = await asyncio.start_server(begin, sock=listening)
    try:
        yield proxy
    finally:
        server.close()
        proxy.refuse()
        await asyncio.gather(*carried)
        await server.wait_closed()
