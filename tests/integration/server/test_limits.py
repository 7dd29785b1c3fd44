"""What callers may have of a listener, with real sockets: callers are addresses of 127.0.0.0/8."""

import asyncio
import contextlib
import gc
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import trustme
from aiohttp import web

from extender.budgets import declare_budget, use_of
from extender.server import callers
from extender.server.acceptor import PAUSES
from extender.server.callers import BodyLimits, CallerConnection, Limits, Proof
from extender.server.connection import Connection
from extender.server.handshakes import EACH_BURST
from extender.server.listener import Listener, open_listener
from extender.server.routes import Reply, Route, route_server
from extender.server.tls import TlsFiles

CONNECTIONS = declare_budget("tests.limits.connections", unit="connections", total=30, most_each=20, why="a test")
BODIES = declare_budget("tests.limits.bodies", unit="bytes", total=200_000, most_each=100_000, why="a test")
STRANGERS = declare_budget("tests.limits.strangers", unit="bytes", total=20_000, most_each=10_000, why="a test")
FEW_CONNECTIONS = declare_budget("tests.limits.few", unit="connections", total=4, most_each=3, why="a test")
LIMITS = Limits(
    connections=CONNECTIONS,
    proof=Proof.TOKEN,
    bodies=BodyLimits(budget=BODIES, request_bytes=50_000, seconds=30.0),
    strangers_bodies=BodyLimits(budget=STRANGERS, request_bytes=5_000, seconds=4.0),
)
NO_PROOF = msgspec.structs.replace(LIMITS, proof=Proof.NONE, strangers_bodies=None)
OURS, FLOOD, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# Heads as a usual client writes them, and as only aiohttp reads them.
HEADS = {"usual": "", "unusual": "X-Unusual: yes\r\n"}


async def answer(body: bytes) -> Reply:
    """The length of the body, after a moment for `wait`."""
    if body.startswith(b"wait"):
        await asyncio.sleep(0.3)
    return Reply(b"%d" % len(body))


def answer_nowait(body: bytes) -> Reply | None:
    """The same, if that takes no waiting."""
    return None if body.startswith(b"wait") else Reply(b"%d" % len(body))


def head_of(path: str, length: int, extra: str = "") -> bytes:
    """The head of a request."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{extra}Content-Length: {length}\r\n\r\n".encode()


class RawConnection:
    """A connection from an address of one's choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> tuple[int, str, bytes]:
        """Status, head and body of the next answer."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode()
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        return int(head.split()[1]), head, await self.reader.readexactly(length)

    async def ask(self, body: bytes = b"x", path: str = "/pods", extra: str = "") -> tuple[int, str, bytes]:
        """The answer to a request."""
        self.writer.write(head_of(path, len(body), extra) + body)
        return await self.read()

    async def abort(self) -> None:
        """Hangs up, whatever state the connection is in."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def is_open(self) -> bool:
        """Whether a request is answered."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            return (await self.ask())[0] == 200
        return False

    async def ends(self) -> bytes:
        """What arrives until the other side ends the connection, within some seconds."""
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 5)
        return b""


class Scene:
    """A listener, and connections to it that end with the test."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._authority = trustme.CA()
        self._folder = folder
        self.listener: Listener
        self._client: ssl.SSLContext | None = None

    async def open(self, limits: Limits, *, tls: bool = False) -> None:
        """Opens the listener: `/pods`."""
        context = None
        if tls:
            leaf = self._authority.issue_cert("localhost", "127.0.0.1")
            leaf.private_key_pem.write_to_path(self._folder / "tls.key")
            leaf.cert_chain_pems[0].write_to_path(self._folder / "tls.crt")
            context = TlsFiles("admission", str(self._folder / "tls.crt"), str(self._folder / "tls.key"), "").context
            self._client = ssl.create_default_context()
            self._authority.configure_trust(self._client)
        route = Route("admission", answer, lambda _body, _id: b"", answer_nowait)
        server = route_server(
            {"/pods": route},
            body_limit_bytes=50_000,
            draining=bool,
        )
        runner = web.ServerRunner(server, shutdown_timeout=1)
        self.listener = await open_listener("admission", runner, "127.0.0.1", 0, context, limits=limits)
        self._stack.push_async_callback(self.listener.close)

    async def open_plain(self, app: web.Application, limits: Limits) -> None:
        """Opens the listener for an application of aiohttp's own."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        self.listener = await open_listener("facts", runner, "127.0.0.1", 0, limits=limits)
        self._stack.push_async_callback(self.listener.close)

    @property
    def port(self) -> int:
        """The listener's."""
        return int(self.listener.address.rpartition(":")[2])

    async def connect(self, host: str, *, plain: bool = False) -> RawConnection:
        """A connection from `host`, with TLS where the listener has it unless `plain`."""
        context = None if plain else self._client
        name = "localhost" if context else None
        made = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(host, 0), ssl=context, server_hostname=name
        )
        connection = RawConnection(*made)
        self._stack.push_async_callback(connection.abort)
        return connection

    async def flood(self, host: str, count: int, *, plain: bool = False) -> list[RawConnection]:
        """Connections from `host`, and a turn of the event loop to accept them."""
        made = [await self.connect(host, plain=plain) for _ in range(count)]
        await until(lambda: True)
        return made


async def until(holds: Callable[[], bool]) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(10):
        for _ in range(10):
            await asyncio.sleep(0.001)
        while not holds():
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _figures_begin_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sums over objects, which tests leave behind."""
    monkeypatch.setattr("extender.server.connection.LINGER_SECONDS", 0.2)
    for spec in (CONNECTIONS, BODIES, STRANGERS):
        use_of(spec).in_use = use_of(spec).refusals = 0


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A listener to be opened."""
    async with AsyncExitStack() as stack:
        yield Scene(stack, tmp_path)
    await until(lambda: use_of(CONNECTIONS).in_use == use_of(BODIES).in_use == use_of(STRANGERS).in_use == 0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_flood_of_silent_connections_keeps_nobody_out(scene: Scene, *, tls: bool) -> None:
    """With TLS they begin no handshake. Theirs are closed, and others answer at once."""
    await scene.open(LIMITS, tls=tls)
    first = await scene.connect(OURS)
    assert await first.is_open()
    await scene.flood(FLOOD, 100, plain=True)
    await scene.flood(OTHER, 100, plain=True)
    assert use_of(CONNECTIONS).in_use == CONNECTIONS.total
    for _ in range(5):
        assert await (await scene.connect(OURS)).is_open()
    assert await first.is_open()
    assert use_of(CONNECTIONS).in_use == CONNECTIONS.total
    assert use_of(CONNECTIONS).refusals >= 170


async def test_flood_of_idle_tls_connections_keeps_nobody_out(scene: Scene) -> None:
    """Connections that have asked once are idle ones as well."""
    await scene.open(NO_PROOF, tls=True)
    flood = [await scene.connect(FLOOD) for _ in range(20)] + [await scene.connect(OTHER) for _ in range(10)]
    for each in flood:
        assert await each.is_open()
    ours = [await scene.connect(OURS) for _ in range(5)]
    assert [await each.is_open() for each in ours] == [True] * 5
    left = [await each.is_open() for each in flood]
    assert left == [False] * 5 + [True] * 25  # those of the caller with most, the longest idle first


async def test_request_that_is_being_answered_is_not_cut_off(scene: Scene) -> None:
    """By no flood; its answer comes."""
    await scene.open(NO_PROOF)
    waiting = [await scene.connect(OURS) for _ in range(15)]
    for each in waiting:
        each.writer.write(head_of("/pods", 4) + b"wait")
    await until(lambda: use_of(BODIES).in_use > 15 * 4)
    await scene.flood(FLOOD, 30)
    await scene.flood(OTHER, 30)
    assert [(await each.read())[0] for each in waiting] == [200] * 15
    assert use_of(BODIES).in_use == 0


async def test_connection_in_use_outlives_idle_ones_where_aiohttp_answers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the listeners of facts and of operations, whose callers keep connections: the one used most is the oldest."""
    monkeypatch.setattr(callers, "OWN_IDLE_SECONDS", 0.05)

    async def reply(_request: web.Request) -> web.Response:
        return web.Response(text="1")

    app = web.Application()
    app.router.add_post("/pods", reply)
    await scene.open_plain(app, msgspec.structs.replace(NO_PROOF, connections=FEW_CONNECTIONS))
    used, idle, silent = [await scene.connect(OURS) for _ in range(3)]
    for each in (used, idle):
        assert (await each.ask())[0] == 200
    await asyncio.sleep(0.1)
    assert (await used.ask())[0] == 200
    for closed in (silent, idle):
        assert (await (await scene.connect(OURS)).ask())[0] == 200
        assert await closed.ends() == b""
    assert (await used.ask())[0] == 200


@pytest.mark.parametrize("head", HEADS)
async def test_slow_bodies_are_refused_to_who_sends_them(scene: Scene, head: str) -> None:
    """With 503 for the one that has taken longest; what they hold stays within their share."""
    await scene.open(NO_PROOF)
    other = await scene.connect(OURS)
    slow = [await scene.connect(FLOOD) for _ in range(5)]
    for each in slow:
        each.writer.write(head_of("/pods", 50_000, HEADS[head]) + b"x" * 40_000)
        await until(lambda: True)
    assert BODIES.most_each * 3 / 4 < use_of(BODIES).in_use <= BODIES.most_each
    for each in slow[:3]:
        status, said, _ = await each.read()
        assert status == 503
        assert "Retry-After: 1\r\n" in said
        assert "Connection: close\r\n" in said
        each.writer.write(b"x" * 10_000)  # is dropped
        assert await each.ends() == b""
    assert (await other.ask(b"x" * 50_000))[0] == 200
    for each in slow[3:]:
        each.writer.write(b"x" * 10_000)
        assert (await each.read())[0] == 200
    assert use_of(BODIES).in_use == 0


async def test_body_of_unknown_length_is_counted_as_it_comes(scene: Scene) -> None:
    """Chunks beyond the limit of a request are 413."""
    await scene.open(LIMITS)
    stranger = await scene.connect(FLOOD)
    stranger.writer.write(b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(6):
        stranger.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await until(lambda: True)
    assert (await stranger.read())[0] == 413
    assert await stranger.ends() == b""


async def test_head_that_never_ends_holds_its_share_and_no_more(scene: Scene) -> None:
    """A hundred fields of 8 KB are bytes like those of a body."""
    await scene.open(LIMITS)
    other = await scene.connect(OURS)
    endless = await scene.connect(FLOOD)
    endless.writer.write(b"POST /pods HTTP/1.1\r\n" + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 4000) for n in range(10)))
    assert await endless.ends() == b""
    assert use_of(STRANGERS).in_use == 0
    assert await other.is_open()


async def test_connections_in_the_queue_are_answered_when_the_listener_closes(scene: Scene) -> None:
    """Who has connected and sent its request before the end has its answer."""
    await scene.open(NO_PROOF)
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket()) for _ in range(10)]
        for each in waiting:
            each.connect(("127.0.0.1", scene.port))  # the kernel accepts it; the event loop has no turn meanwhile
            each.sendall(head_of("/pods", 4) + b"wait")
        await scene.listener.close()
        for each in waiting:
            each.settimeout(5)
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_handshake_under_way_does_not_hold_up_the_end(scene: Scene) -> None:
    """For more than a moment."""
    await scene.open(NO_PROOF, tls=True)
    silent = await scene.flood(FLOOD, 3, plain=True)
    async with asyncio.timeout(3):
        await scene.listener.close()
    assert [await each.ends() for each in silent] == [b""] * 3


async def test_listener_without_descriptors_waits_for_them(scene: Scene) -> None:
    """The connection stays in the kernel's queue, and is answered when there are descriptors again."""
    await scene.open(NO_PROOF)
    before = PAUSES["descriptors"].value
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            client.connect(("127.0.0.1", scene.port))
            client.sendall(head_of("/pods", 1) + b"x")
            await until(lambda: PAUSES["descriptors"].value > before)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.setblocking(False)
        answered = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 5)
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert PAUSES["descriptors"].value == before + 1


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_connection_that_has_ended_leaves_nothing_to_the_garbage_collector(scene: Scene, *, tls: bool) -> None:
    """Its TLS buffers take 100 KB and more, and a full collection may be minutes away."""
    await scene.open(NO_PROOF, tls=tls)
    gc.collect()
    before = connections_in_memory()
    gc.disable()
    try:
        for _ in range(5):
            connection = await scene.connect(FLOOD)
            assert await connection.ask()
            connection.writer.write(head_of("/pods", 20_000) + b"x" * 10_000)
            await until(lambda: use_of(BODIES).in_use >= 10_000)
            await connection.abort()
            await until(lambda: use_of(CONNECTIONS).in_use == 0)
        assert connections_in_memory() == before
    finally:
        gc.enable()


async def test_connection_without_a_handshake_leaves_nothing_to_the_garbage_collector(scene: Scene) -> None:
    """A flood opens a thousand a second, and what they leave would make collections long."""
    await scene.open(LIMITS, tls=True)
    gc.collect()
    before = connections_in_memory(CallerConnection)
    gc.disable()
    try:
        await scene.flood(FLOOD, 200, plain=True)  # of which all but some are closed for others
        await scene.flood(OTHER, 200, plain=True)
        await until(lambda: use_of(CONNECTIONS).in_use < 200)
        left = connections_in_memory(CallerConnection) - before - use_of(CONNECTIONS).in_use
        assert left <= EACH_BURST  # those whose handshakes had begun
    finally:
        gc.enable()


@pytest.mark.parametrize("ends", ["client", "service"])
async def test_handshake_that_fails_leaves_nothing_to_the_garbage_collector(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Whether the client goes, or does not go on in time."""
    monkeypatch.setattr("extender.server.listener.HANDSHAKE_SECONDS", 0.2 if ends == "service" else 60)
    await scene.open(LIMITS, tls=True)
    gc.collect()
    before = connections_in_memory()
    gc.disable()
    try:
        clients = await scene.flood(FLOOD, 5, plain=True)
        await until(lambda: connections_in_memory() == before + 5)
        if ends == "client":
            for client in clients:
                await client.abort()
        await until(lambda: connections_in_memory() == before)
        assert use_of(CONNECTIONS).in_use == 0
    finally:
        gc.enable()


def connections_in_memory(kind: type = Connection) -> int:
    """How many objects of connections there are."""
    return sum(type(each) is kind for each in gc.get_objects())
