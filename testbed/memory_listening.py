"""Who listens in the memory network, and for which program."""

import asyncio
import errno
import socket
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

from testbed.memory_transport import MemoryTransport


class Party:
    """A program in the loop, at an address of its own. One that is gone reaches nobody, whatever its tasks still do."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_gone = False
        self.tasks: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = weakref.WeakValueDictionary()
        """Its tasks, by their number, in the order in which they began."""


PARTY: ContextVar[Party | None] = ContextVar("PARTY", default=None)
"""The program that a task belongs to. Its tasks, callbacks and timers inherit it."""


class MemoryServer(asyncio.AbstractServer):
    """Who listens at an address, until `close`."""

    def __init__(
        self,
        servers: dict[tuple[str, int], "MemoryServer"],
        host: str,
        port: int,
        accept: Callable[[MemoryTransport], None],
    ) -> None:
        """Adds itself to `servers`, which has those of all addresses. Raises OSError if somebody listens there."""
        if (host, port) in servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.host, self.port, self.accept = host, port, accept
        self.party = PARTY.get()
        self.context = copy_context()
        """In which connections are accepted."""
        self.of: socket.socket | None = None
        """A real socket that gave the address, and closes too."""
        self._servers = servers
        servers[host, port] = self

    @property
    def sockets(self) -> tuple["MemoryServer", ...]:
        """Itself while it listens: as a socket it has an address."""
        return (self,) if self.is_serving() else ()

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self.host, self.port

    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._servers.get((self.host, self.port)) is self

    def close(self) -> None:
        """Accepts no more; open connections stay."""
        if self.is_serving():
            del self._servers[self.host, self.port]
            if self.of:
                self.of.close()

    async def wait_closed(self) -> None:
        """Returns at once."""

    async def start_serving(self) -> None:
        """Returns at once."""

    async def serve_forever(self) -> None:
        """Waits for ever."""
        await self.get_loop().create_future()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return asyncio.get_running_loop()


class Accepted:
    """A connection that a socket has accepted, and that has no protocol yet."""

    def __init__(self, end: MemoryTransport) -> None:
        self.end = end

    def setblocking(self, flag: bool) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Ends the connection, if no protocol has it."""
        self.end.abort()


Accept = Callable[[str, int, Callable[[MemoryTransport], None]], MemoryServer]


class MemorySocket:
    """A listening socket, as far as `loop.sock_accept` and its callers need one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, accept: Accept) -> None:
        """`accept` begins to listen."""
        self._queue: deque[MemoryTransport] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = loop
        self._server = accept(host, port, self._take)

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self._server.host, self._server.port

    def setblocking(self, flag: bool) -> None:
        """Does nothing."""

    def setsockopt(self, *options: object) -> None:
        """Does nothing."""

    def accept(self) -> tuple[Accepted, None]:
        """The next connection. Raises BlockingIOError if there is none."""
        if not self._queue:
            raise BlockingIOError(errno.EAGAIN, "there is no connection")
        return Accepted(self._queue.popleft()), None

    async def next_end(self) -> Accepted:
        """The next connection, once there is one."""
        while not self._queue:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self.accept()[0]

    def close(self) -> None:
        """Accepts no more."""
        self._server.close()
        for end in self._queue:
            end.abort()

    def _take(self, far: MemoryTransport) -> None:
        self._queue.append(far)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
