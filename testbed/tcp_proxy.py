"""A cable between a client and the API server that can be cut: TCP passed on byte by byte, so that TLS does not notice.

Knows no protocol. It stands for everything between the two that can break: a load balancer, a router, a node.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16


class Cable:
    """Get it from `open_cable`; `port` is its near end."""

    def __init__(self, far_port: int) -> None:
        self.port = 0
        self._far_port = far_port
        self._is_severed = False
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """How many connections it carries."""
        return sum(not end.is_closing() for end in self._ends) // 2

    def cut(self) -> None:
        """Resets every connection of this moment; new ones are let through."""
        for end in self._ends:
            end.transport.abort()

    def sever(self) -> None:
        """Resets every connection, and every new one until `mend`."""
        self._is_severed = True
        self.cut()

    def mend(self) -> None:
        """Lets connections through again."""
        self._is_severed = False

    async def carry(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        try:
            if self._is_severed:
                raise ConnectionAbortedError
            far_in, far_out = await asyncio.open_connection(LOOPBACK, self._far_port)
        except OSError:
            near_out.transport.abort()
            return
        ends = {near_out, far_out}
        self._ends |= ends
        try:
            await asyncio.gather(_pump(near_in, far_out), _pump(far_in, near_out))
        finally:
            self._ends -= ends


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()  # what is written already is still sent


@asynccontextmanager
async def open_cable(far_port: int) -> AsyncIterator[Cable]:
    """A cable to that port on loopback; everything is cut at the end."""
    cable = Cable(far_port)
    carried: set[asyncio.Task[None]] = set()

    def begin(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(cable.carry(near_in, near_out))
        carried.add(task)
        task.add_done_callback(carried.discard)

    server = await asyncio.start_server(begin, LOOPBACK, 0)
    cable.port = server.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        server.close()
        cable.sever()
        await asyncio.gather(*carried)
        await server.wait_closed()
