"""An event loop without the kernel: its clock jumps to the next timer, and its connections are in memory.

A program that runs here reads no real clock, opens no port and starts no thread: what it does follows from the seed.
`Network` makes faults, by the address of a party. A party (`Party`) is who connects: what its tasks do goes by it.
"""

import asyncio
import contextlib
import errno
import heapq
import itertools
import random
import socket
import ssl
import weakref
from asyncio import sslproto
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context
from ipaddress import ip_address
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast
from unittest.mock import patch

import aiohttp.connector

from testbed.memory_listening import PARTY, Accepted, MemoryServer, MemorySocket, Party
from testbed.memory_transport import Link, MemoryTransport, join

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_FIRST_PORT = 20_000  # of those that are taken for port 0, and of who connects
_EPOCH = 1_800_000_000.0  # in January 2027: the wall clock at the loop's start
_MOST_TURNS = 500_000  # of the loop without time passing: something calls itself for ever
_ANYWHERE = ("", "0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "::1")


class MemoryLoop(asyncio.BaseEventLoop):
    """Virtual time from 0.0. Equal timers run in an order that `seed` draws; without one in that of their making.

    Work for an executor is done at once, in the caller's context; its result is there a turn later.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.timers = 0
        """How many timers have been set."""
        self._now = 0.0
        self._turns = 0
        self._heap: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._draw = random.Random(seed).random if seed is not None else lambda: 0.0
        self._tasks = itertools.count()
        self._links: weakref.WeakKeyDictionary[socket.socket, Link] = weakref.WeakKeyDictionary()
        self.network = Network(self, seed or 0)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback at that time."""
        self.timers += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._heap, (when, self._draw(), self.timers, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback after so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Runs the callback at the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        """Starts a task, which belongs to the party of its context."""
        task = asyncio.Task(coro, loop=self, name=cast("str | None", name), context=context, **options)
        party = PARTY.get() if context is None else context.get(PARTY)
        if party:
            party.tasks[next(self._tasks)] = task
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Does the work now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            self.call_soon(_settle, future.set_result, func(*args), future)
        except Exception as exc:  # noqa: BLE001  # whatever the work raises
            self.call_soon(_settle, future.set_exception, exc, future)
        return future

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolves a name as the network has it."""
        await asyncio.sleep(0)
        address = self.network.resolve(host or "127.0.0.1")
        if ":" in address:
            return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, int(port or 0), 0, 0))]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        server_hostname: str | None = None,
        **_: Any,
    ) -> tuple[Any, Any]:
        """Connects to host and port, or to what `sock_connect` has found."""
        if sock is not None:
            link = self._links.pop(sock)
            sock.close()
        else:
            link = await self.network.reach(PARTY.get(), host, port)
        transport = self.network.open(link)
        return await self._begin(transport, protocol_factory(), ssl, server_hostname or host)

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        ssl: Any = None,
        **_: Any,
    ) -> Any:
        """Listens at host and port, or at the address of a socket."""
        if sock is not None:
            host, port = sock.getsockname()[:2]
        host = host if isinstance(host, str) else (host or [""])[0]

        def accept(far: MemoryTransport) -> None:
            self._accept(far, protocol_factory(), ssl)

        server = self.network.accept(host if host in _ANYWHERE else self.network.resolve(host), port or 0, accept)
        server.of = sock
        return server

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connects, for `create_connection`, if somebody listens there."""
        self._links[sock] = await self.network.reach(PARTY.get(), address[0], address[1])

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        """The next connection to the address of the socket: an end, for `connect_accepted_socket`."""
        return await cast("MemorySocket", sock).next_end(), None

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, *, ssl: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        """Gives an accepted connection to a protocol."""
        return await self._begin(cast("Accepted", sock).end, protocol_factory(), ssl, None)

    async def _begin(
        self,
        transport: MemoryTransport,
        protocol: asyncio.BaseProtocol,
        tls: ssl.SSLContext | bool | None,
        name: str | None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if not tls:
            transport.attach(protocol)
            return transport, protocol
        waiter = self.create_future()
        secured = self._secure(transport, protocol, tls, name, waiter)._app_transport
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return cast("asyncio.Transport", secured), protocol

    def _accept(self, far: MemoryTransport, protocol: asyncio.BaseProtocol, tls: ssl.SSLContext | None) -> None:
        if tls:
            self._secure(far, protocol, tls, None, None)
        else:
            far.attach(protocol)

    def _secure(
        self,
        transport: MemoryTransport,
        protocol: asyncio.BaseProtocol,
        tls: ssl.SSLContext | bool,
        name: str | None,
        waiter: "asyncio.Future[None] | None",
    ) -> Any:
        context = ssl.create_default_context() if tls is True else tls
        args = (self, protocol, context, waiter, name is None, name or None)
        secured = cast("Any", sslproto.SSLProtocol)(*args, call_connection_made=True)
        transport.attach(secured)
        return secured

    def _run_once(self) -> None:
        """One turn: the timers that are due, then what is ready. Puts the clock forward if nothing is."""
        ready, heap = self._ready, self._heap
        while heap and (heap[0][0] <= self._now or heap[0][3].cancelled()):
            ready.append(heapq.heappop(heap)[3])
        if not ready and not self._stopping:
            if not heap:
                raise RuntimeError("everything waits, and no timer is set")
            self._now, self._turns = heap[0][0], 0
            while heap and heap[0][0] <= self._now:
                ready.append(heapq.heappop(heap)[3])
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise RuntimeError(f"the clock stands at {self._now}: something calls itself for ever")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def close(self) -> None:
        """Drops everything."""
        self._heap.clear()
        super().close()

    def _write_to_self(self) -> None:
        """Nobody is to be woken."""


def _settle(settle: Callable[[Any], None], value: object, future: "asyncio.Future[Any]") -> None:
    """Ends a future, unless its waiter has gone."""
    if not future.done():
        settle(value)


class Network:
    """The connections of a loop, its names, and its faults.

    A fault is of a place: an address, or `address:port`. It concerns the connections to it and those that it makes;
    with `of`, only those to it from that address. `chance` draws what is left open: how long bytes take.
    """

    def __init__(self, loop: MemoryLoop, seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(seed)
        self.names: dict[str, str] = {"localhost": "127.0.0.1"}
        """Host name to address; others do not resolve."""
        self.latency_seconds = 0.0
        """What bytes take at most, one way, where there is no fault."""
        self.servers: dict[tuple[str, int], MemoryServer] = {}
        self.parties: list[Party] = []
        """Those that are gone once `run_in_memory` has its result: what their ends do is no part of the world."""
        self.links: dict[Link, None] = {}
        """The open connections, the oldest first."""
        self._refused: set[tuple[str, str]] = set()
        self._silenced: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._delays: dict[tuple[str, str], float] = {}
        self._ports = itertools.count(_FIRST_PORT)

    def wall_clock(self) -> float:
        """Seconds since 1970."""
        return _EPOCH + self.loop.time()

    def resolve(self, host: str) -> str:
        """The address of a host. Raises socket.gaierror if it has none."""
        address = self.names.get(host)
        if address is not None:
            return address
        try:
            return str(ip_address(host))
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None

    def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> MemoryServer:
        """Listens at an address; port 0 takes a free one, loopback, or no host, is the party's own address."""
        return self.accept(host, port, lambda far: far.attach(factory()))

    def accept(self, host: str, port: int, accept: Callable[[MemoryTransport], None]) -> MemoryServer:
        """Gives the ends of new connections to `accept`. Raises OSError if somebody listens there."""
        port = port or next(self._ports)
        party = PARTY.get()
        if party and party.address and host in (*_ANYWHERE, *_LOOPBACK):
            host = party.address
        elif host in _ANYWHERE:
            host = ""
        return MemoryServer(self.servers, host, port, accept)

    def bind(self, host: str, port: int) -> MemorySocket:
        """Returns a listening socket. Raises OSError if somebody listens there."""
        return MemorySocket(self.loop, host, port, self.accept)

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, *, of: str = ""
    ) -> tuple[MemoryTransport, asyncio.Protocol]:
        """A connection from the address `of`. Raises ConnectionRefusedError or socket.gaierror."""
        transport = self.open(await self.reach(Party(of) if of else None, host, port))
        protocol = factory()
        transport.attach(protocol)
        return transport, protocol

    async def reach(self, party: Party | None, host: str, port: int) -> Link:
        """Waits for as long as connecting takes; raises what `connect` raises."""
        address, of = self.resolve(host), party.address if party else ""
        link = Link(self, of, of if of and address in _LOOPBACK else address, port)
        await asyncio.sleep(self.transit_seconds(link))
        while blocking := next((found for key in link.keys if (found := self._silenced.get(key))), None):
            await asyncio.shield(blocking)
        if party and party.is_gone:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self._server_of(link)
        return link

    def open(self, link: Link) -> MemoryTransport:
        """Returns the end of who connects, and gives the server its own. Raises ConnectionRefusedError."""
        server = self._server_of(link)
        near, far = join(self.loop, link, next(self._ports))
        self.links[link] = None
        self.loop.call_soon(server.accept, far, context=server.context)
        return near

    def cut(self, host: str, *, of: str = "") -> None:
        """Resets the open connections, at both ends."""
        for link in [*self.links]:
            if (host, of) in link.keys and link.near and link.far:
                link.near.reset()
                link.far.reset()

    def refuse(self, host: str, on: bool, *, of: str = "") -> None:
        """Refuses new connections."""
        (self._refused.add if on else self._refused.discard)((host, of))

    def silence(self, host: str, on: bool, *, of: str = "") -> None:
        """Has the bytes of open connections vanish for ever, and new ones hang until it ends."""
        ended = self._silenced.pop((host, of), None)
        if ended:
            ended.set_result(None)
        if not on:
            return
        self._silenced[host, of] = self.loop.create_future()
        for link in self.links:
            if (host, of) in link.keys:
                link.is_silenced = True

    def delay(self, host: str, seconds: float, *, of: str = "") -> None:
        """Has bytes take so much longer; 0 ends it."""
        self._delays.pop((host, of), None)
        if seconds:
            self._delays[host, of] = seconds

    def end(self, party: Party) -> None:
        """Ends a party as SIGKILL does: nothing that it still does reaches anybody."""
        party.is_gone = True
        for server in [each for each in self.servers.values() if each.party is party]:
            server.close()
        self.cut(party.address)
        for task in [*party.tasks.values()]:
            task.cancel()

    def transit_seconds(self, link: Link) -> float:
        """How long the next bytes of a connection take."""
        seconds = self.latency_seconds * self.chance.random() if self.latency_seconds else 0.0
        if self._delays:
            seconds += sum(self._delays.get(key, 0.0) for key in link.keys)
        return seconds

    def forget(self, link: Link) -> None:
        """Drops a connection whose ends are both closed."""
        self.links.pop(link, None)

    def _server_of(self, link: Link) -> MemoryServer:
        server = self.servers.get((link.server, link.port))
        if server is None and link.server in _LOOPBACK:
            server = self.servers.get(("", link.port))
        if server is None or not self._refused.isdisjoint(link.keys):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return server


def run_in_memory(main: Callable[[Network], Coroutine[Any, Any, T]], *, seed: int | None = 0) -> T:
    """Returns the result of the coroutine, in a loop of its own."""
    loop = MemoryLoop(seed)

    async def play() -> T:
        try:
            return await main(loop.network)
        finally:
            for party in loop.network.parties:
                party.is_gone = True

    with libraries_in(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(play())


@contextlib.contextmanager
def libraries_in(loop: MemoryLoop) -> Iterator[None]:
    """Has aiohttp's client tell the age of idle connections and of names by the loop: its own clock is another.

    Its sets keep their order: else those who wait for a name would go on in that of their futures' addresses.
    """
    connector = aiohttp.connector
    with patch.object(connector, "monotonic", loop.time), patch.object(connector, "set", _OrderedSet, create=True):
        yield


class _OrderedSet(dict[Any, None]):
    """As much of a set as aiohttp's connector uses."""

    def add(self, item: object) -> None:
        self[item] = None

    def discard(self, item: object) -> None:
        self.pop(item, None)

    remove = discard
