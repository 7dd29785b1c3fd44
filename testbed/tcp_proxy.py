"""A TCP proxy between a client and a server on loopback, whose connections a test resets or refuses.

It passes bytes on and knows no protocol, so TLS does not notice it. It plays everything between the two that can break:
a load balancer, a router, a node.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16


class TcpProxy:
    """The proxy, which listens on `port`; get it from `open_tcp_proxy`."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._is_refusing = False
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """How many connections it carries."""
        return sum(not end.is_closing() for end in self._ends) // 2

    def reset(self) -> None:
        """Resets every connection of this moment; new ones are let through."""
        for end in self._ends:
            end.transport.abort()

    def refuse(self) -> None:
        """Resets every connection, and every new one until `accept`."""
        self._is_refusing = True
        self.reset()

    def accept(self) -> None:
        """Lets connections through again."""
        self._is_refusing = False

    async def carry(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        try:
            if self._is_refusing:
                raise ConnectionAbortedError
            server_in, server_out = await asyncio.open_connection(LOOPBACK, self._server_port)
        except OSError:
            client_out.transport.abort()
            return
        ends = {client_out, server_out}
        self._ends |= ends
        try:
            await asyncio.gather(_pump(client_in, server_out), _pump(server_in, client_out))
        finally:
            self._ends -= ends


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()  # what is written already is still sent


@asynccontextmanager
async def open_tcp_proxy(server_port: int) -> AsyncIterator[TcpProxy]:
    """A proxy to that port on loopback; every connection is reset at the end."""
    proxy = TcpProxy(server_port)
    carried: set[asyncio.Task[None]] = set()

    def begin(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.carry(client_in, client_out))
        carried.add(task)
        task.add_done_callback(carried.discard)

    server = await asyncio.start_server(begin, LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.refuse()
        await asyncio.gather(*carried)
        await server.wait_closed()
