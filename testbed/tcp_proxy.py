"""A TCP proxy between a client and a server on loopback, whose connections a test resets or refuses.

It forwards bytes and parses no protocol, so it works for TLS. It stands for whatever can break between the two: a load
balancer, a router, a node.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Ends]]
"""Connects with the server for a client, with whom it may speak before. Raises OSError."""


class TcpProxy:
    """The proxy, which listens on `port`. `open_tcp_proxy` and `open_relay` make it."""

    def __init__(self, listening: socket.socket, connect: Connect, answer_seconds: float) -> None:
        self._listening = listening
        self._connect = connect
        self._answer_seconds = answer_seconds
        self._is_refusing = False
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listening.getsockname()[1])

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
            server_in, server_out = await self._connect(client_in, client_out)
        except (OSError, asyncio.CancelledError):
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
    async with open_relay(listening, connect_to(server_port), answer_seconds=answer_seconds) as proxy:
        yield proxy


def connect_to(port: int) -> Connect:
    """Returns what connects every client with that port on loopback."""
    return lambda *_client: asyncio.open_connection(LOOPBACK, port)


@asynccontextmanager
async def open_relay(
    listening: socket.socket, connect: Connect, *, answer_seconds: float = 0.0
) -> AsyncIterator[TcpProxy]:
    """Runs a proxy from that socket, which it closes, to wherever `connect` connects."""
    proxy = TcpProxy(listening, connect, answer_seconds)
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
        for task in carried:  # those that are not connected yet
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)
        await server.wait_closed()
