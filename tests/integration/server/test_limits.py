"""What callers may have of a listener."""

import asyncio
import errno
import gc
import gzip
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from email.message import Message
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from extender.server.http import (
    ANSWER_SECONDS,
    HEAD_SECONDS,
    MIB,
    REFUSALS,
    Connection,
    Limits,
    Listener,
    open_listener,
)
from extender.server.operations import Operations
from extender.server.routes import PostRoutes, Reply, Route
from extender.server.tls import TlsFiles
from testbed.certificates import Authority
from testbed.eventually import eventually
from testbed.machines import running_machine
from tests.integration.server.raw_http import RawConnection, port_of

pytestmark = pytest.mark.usefixtures("simulated_time")
LIMITS = Limits(connections=30, body_bytes=50_000, pending_bytes=100_000)
# Heads as a usual client writes them, and as only aiohttp reads them.
HEADS = {"usual": "", "unusual": "X-Unusual: yes\r\n"}
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(body: bytes) -> Reply:
    if body.startswith(b"wait"):
        seconds = {b"wait long": HEAD_SECONDS + 1, b"wait for ever": 3600}
        await asyncio.sleep(seconds.get(body.rstrip(), 0.3))
    if body == b"large":
        return Reply(bytes(8 * MIB))
    return Reply(b"%d" % len(body))


def head_of(length: int, extra: str = "") -> bytes:
    return f"POST /pods HTTP/1.1\r\nHost: x\r\n{extra}Content-Length: {length}\r\n\r\n".encode()


class Client(RawConnection):
    """A connection that asks for the length of what it sends."""

    async def ask(self, body: bytes = b"x", extra: str = "") -> tuple[int, Message, bytes]:
        self.writer.write(head_of(len(body), extra) + body)
        return await self.read()

    async def is_open(self) -> bool:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            return (await self.ask())[0] == 200
        return False


class Scene:
    """A listener, and connections to it that end with the test."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.listener: Listener
        self._client: ssl.SSLContext | None = None

    async def open(self, limits: Limits = LIMITS, *, tls: bool = False) -> None:
        context = None
        if tls:
            authority = Authority(self._folder)
            leaf = authority.issue("localhost")
            context = TlsFiles("admission", str(leaf.certificate), str(leaf.key), "").context
            self._client = authority.trust(leaf)
        route = Route("admission", answer, lambda _body, _id: b"")
        service = PostRoutes({"/pods": route}, draining=bool, token_bytes=bytes)
        self.listener = open_listener(
            "admission", service, "127.0.0.1", 0, context, bind=running_machine().bind, limits=limits
        )
        self._stack.push_async_callback(self.listener.close)

    async def open_plain(self) -> None:
        self.listener = open_listener(
            "operations",
            Operations({}, {}, clock=asyncio.get_running_loop().time),
            "127.0.0.1",
            0,
            bind=running_machine().bind,
            limits=LIMITS,
        )
        self._stack.push_async_callback(self.listener.close)

    @property
    def pending_bytes(self) -> int:
        return self.listener.pending_bytes

    async def connect(self, *, plain: bool = False) -> Client:
        context = None if plain else self._client
        name = "localhost" if context else None
        connection = Client(
            *await asyncio.open_connection("127.0.0.1", port_of(self.listener), ssl=context, server_hostname=name)
        )
        self._stack.push_async_callback(connection.abort)
        return connection

    async def flood(self, count: int, *, plain: bool = False) -> list[Client]:
        made = [await self.connect(plain=plain) for _ in range(count)]
        await some_turns()
        return made


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0.001)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A listener to be opened; when its connections have ended, it counts nothing more."""
    async with AsyncExitStack() as stack:
        made = Scene(stack, tmp_path)
        yield made
    assert made.pending_bytes == 0
    assert not made.listener.count


@pytest.fixture(params=["hot path", "operations"])
async def any_scene(scene: Scene, request: pytest.FixtureRequest) -> Scene:
    await (scene.open() if request.param == "hot path" else scene.open_plain())
    return scene


@pytest.mark.parametrize("start", [b"", b"PO", GET[:-2]], ids=["nothing", "word", "line"])
async def test_connection_without_a_whole_head_is_ended(any_scene: Scene, start: bytes) -> None:
    """After some seconds, on any listener, the next one as well."""
    before = REFUSALS["time"].value
    for _ in range(2):
        half = await any_scene.connect()
        half.writer.write(start)
        assert await half.ends() == b""
    assert REFUSALS["time"].value == before + 2


async def test_connection_that_has_asked_may_idle_but_not_begin_a_head(scene: Scene) -> None:
    """The pool of a client keeps its connections for long; an answer may take longer than a head."""
    await scene.open()
    idle, waiting, half = await scene.connect(), await scene.connect(), await scene.connect()
    assert await idle.is_open()
    assert await half.is_open()
    half.writer.write(head_of(1)[:-2])
    assert (await waiting.ask(b"wait long"))[0] == 200
    assert await half.ends() == b""
    assert await idle.is_open()
    assert await waiting.is_open()


@pytest.mark.parametrize("head", HEADS)
async def test_late_body_is_answered_with_408(scene: Scene, head: str) -> None:
    """And what arrived of it is not kept."""
    await scene.open()
    late = await scene.connect()
    late.writer.write(head_of(50, HEADS[head]) + b"x" * 49)
    status, headers, _ = await late.read()
    assert status == 408
    assert headers["Connection"] == "close"
    assert scene.pending_bytes == 0
    assert await late.ends() == b""


@pytest.mark.parametrize("head", HEADS)
async def test_slow_bodies_are_refused_when_they_take_too_much(scene: Scene, head: str) -> None:
    """With 503, those first that have taken longest; all others are answered."""
    await scene.open()
    slow = [await scene.connect() for _ in range(5)]
    for each in slow:
        each.writer.write(head_of(50_000, HEADS[head]) + b"x" * 40_000)
        await some_turns()
    assert LIMITS.pending_bytes * 3 / 4 < scene.pending_bytes <= LIMITS.pending_bytes
    for each in slow[:3]:
        status, headers, _ = await each.read()
        assert status == 503
        assert headers["Retry-After"] == "1"
        assert headers["Connection"] == "close"
        each.writer.write(b"x" * 10_000)  # is dropped
        assert await each.ends() == b""
    assert (await (await scene.connect()).ask(b"x" * 10_000))[0] == 200
    for each in slow[3:]:
        each.writer.write(b"x" * 10_000)
        assert (await each.read())[0] == 200
    assert scene.pending_bytes == 0


@pytest.mark.parametrize("head", HEADS)
async def test_requests_that_wait_for_their_answers_take_room_and_are_answered(scene: Scene, head: str) -> None:
    """The request is refused that there is no room for."""
    await scene.open()
    asking = [await scene.connect() for _ in range(3)]
    for each in asking:
        each.writer.write(head_of(45_000, HEADS[head]) + b"wait" + b"x" * 44_996)
        await eventually(lambda: scene.pending_bytes > 0)
        await some_turns()
    assert [(await each.read())[0] for each in asking] == [200, 200, 503]
    assert scene.pending_bytes == 0


@pytest.mark.parametrize("head", HEADS)
async def test_body_over_the_limit_is_refused_by_its_length(scene: Scene, head: str) -> None:
    """413 before it arrives; what still arrives is not kept."""
    await scene.open()
    large = await scene.connect()
    large.writer.write(head_of(50_001, HEADS[head]) + b"x" * 1000)
    assert (await large.read())[0] == 413
    large.writer.write(b"x" * 40_000)
    await some_turns()
    assert scene.pending_bytes == 0
    assert await large.ends() == b""


async def test_body_of_unknown_length_is_measured_as_it_comes(scene: Scene) -> None:
    """Chunks beyond the limit of a request are 413."""
    await scene.open()
    chunked = await scene.connect()
    chunked.writer.write(b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(51):
        chunked.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await asyncio.sleep(0)
    assert (await chunked.read())[0] == 413
    assert await chunked.ends() == b""


async def test_compressed_body_is_not_made_larger(scene: Scene) -> None:
    """A hundred kilobytes of zeros are a hundred bytes, and stay so."""
    await scene.open()
    packed = gzip.compress(bytes(100_000))
    assert (await (await scene.connect()).ask(packed, "Content-Encoding: gzip\r\n"))[2] == b"%d" % len(packed)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("head", HEADS)
async def test_the_body_of_a_caller_that_is_gone_is_counted_while_it_is_worked_on(
    scene: Scene, head: str, *, tls: bool
) -> None:
    """Else whoever hangs up could have as many as there is memory."""
    await scene.open(tls=tls)
    gone = [await scene.connect() for _ in range(2)]
    for number, each in enumerate(gone, 1):
        each.writer.write(head_of(45_000, HEADS[head]) + b"wait for ever".ljust(45_000))
        await eventually(lambda: scene.pending_bytes >= 45_000 * number)  # noqa: B023
        await some_turns()
        await each.abort()
    if tls:
        await eventually(lambda: scene.listener.count == 0)
    await some_turns()
    assert scene.pending_bytes >= 90_000
    late = await scene.connect()
    late.writer.write(head_of(45_000, HEADS[head]) + b"x" * 45_000)
    assert (await late.read())[0] == 503
    assert await (await scene.connect()).is_open()


ROOMY = Limits(connections=30, body_bytes=50_000, pending_bytes=20 * MIB)


def stop_reading(client: Client) -> asyncio.Transport:
    transport = client.writer.transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()
    return transport


async def ask_and_not_read(scene: Scene, head: str) -> Client:
    """A client that asks for an answer of 8 MB, and reads none of it."""
    client = await scene.connect()
    stop_reading(client)
    client.writer.write(head_of(5, HEADS[head]) + b"large")
    for _ in range(10):
        await some_turns()
    return client


@pytest.mark.parametrize("head", HEADS)
async def test_what_is_written_and_not_read_takes_room(scene: Scene, head: str) -> None:
    """The connection that has waited longest gives way, in the middle of its answer."""
    await scene.open(ROOMY)
    before = REFUSALS["bytes"].value
    for _ in range(8):
        await ask_and_not_read(scene, head)
        assert scene.pending_bytes <= ROOMY.pending_bytes
    assert scene.pending_bytes > ROOMY.pending_bytes / 4
    assert REFUSALS["bytes"].value > before
    assert await (await scene.connect()).is_open()


@pytest.mark.parametrize("head", HEADS)
async def test_who_reads_nothing_is_ended(scene: Scene, head: str) -> None:
    """After some seconds, and not before, as an idle connection is."""
    await scene.open(ROOMY)
    before = REFUSALS["time"].value
    client = await ask_and_not_read(scene, head)
    waiting = scene.pending_bytes
    assert waiting > MIB
    for _ in range(ROOMY.connections + 5):  # others come, and take the places of idle ones
        assert await (await scene.connect()).is_open()
    await asyncio.sleep(ANSWER_SECONDS - 5)
    assert scene.pending_bytes == waiting
    await asyncio.sleep(6)
    assert scene.pending_bytes == 0
    assert REFUSALS["time"].value == before + 1
    stop_reading(client).resume_reading()
    assert len(await client.ends()) < 8 * MIB


@pytest.mark.parametrize("head", HEADS)
async def test_who_reads_late_has_the_whole_answer(scene: Scene, head: str) -> None:
    await scene.open(ROOMY)
    client = await ask_and_not_read(scene, head)
    await asyncio.sleep(ANSWER_SECONDS - 5)
    stop_reading(client).resume_reading()
    status, _, body = await client.read()
    assert (status, len(body)) == (200, 8 * MIB)
    await eventually(lambda: scene.pending_bytes == 0)
    if head == "usual":
        assert await client.is_open()


async def test_full_listener_closes_new_connections(scene: Scene) -> None:
    """While all that it has wait for their answers."""
    await scene.open()
    held = await scene.flood(LIMITS.connections)
    for each in held:
        each.writer.write(head_of(4) + b"wait")
    await some_turns()
    before = REFUSALS["connections"].value
    assert await (await scene.connect()).ends() == b""
    assert REFUSALS["connections"].value == before + 1
    assert [(await each.read())[0] for each in held] == [200] * LIMITS.connections


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_silent_connections_give_way_before_those_that_have_asked(scene: Scene, *, tls: bool) -> None:
    """In their TLS handshake or after it. A request that waits for its answer is not cut off."""
    await scene.open(tls=tls)
    idle, waiting = await scene.connect(), await scene.connect()
    assert await idle.is_open()
    silent = await scene.flood(LIMITS.connections - 2, plain=True)
    waiting.writer.write(head_of(4) + b"wait")
    await some_turns()
    assert await (await scene.connect()).is_open()
    assert await silent[0].ends() == b""
    assert (await waiting.read())[0] == 200
    assert await idle.is_open()


async def test_longest_idle_connection_gives_way_to_a_new_one(scene: Scene) -> None:
    """Those in use stay."""
    await scene.open()
    held = await scene.flood(LIMITS.connections)
    for each in held:
        assert (await each.ask())[0] == 200
    assert (await held[0].ask())[0] == 200
    assert await (await scene.connect()).is_open()
    assert await held[1].ends() == b""
    assert await held[0].is_open()


@pytest.mark.parametrize("head", HEADS)
async def test_requests_that_arrive_or_wait_are_answered_when_the_listener_closes(scene: Scene, head: str) -> None:
    """With the word that the connection ends; idle connections end at once."""
    await scene.open()
    idle, arriving, waiting = await scene.connect(), await scene.connect(), await scene.connect()
    assert await idle.is_open()
    assert await arriving.is_open()
    arriving.writer.write(head_of(10, HEADS[head]) + b"x")
    waiting.writer.write(head_of(4, HEADS[head]) + b"wait")
    await eventually(lambda: scene.pending_bytes > 4)
    closing = asyncio.create_task(scene.listener.close())
    assert await idle.ends() == b""
    arriving.writer.write(b"x" * 9)
    for each in (arriving, waiting):
        status, headers, _ = await each.read()
        assert status == 200
        assert headers["Connection"] == "close"
    await closing


async def test_handshake_under_way_does_not_hold_up_the_end(scene: Scene) -> None:
    """For more than a moment."""
    await scene.open(tls=True)
    silent = await scene.flood(3, plain=True)
    async with asyncio.timeout(3):
        await scene.listener.close()
    assert [await each.ends() for each in silent] == [b""] * 3


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ETIMEDOUT])
async def test_a_connection_that_is_gone_before_it_is_accepted_holds_up_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As accept(2) says it of the one."""
    loop = asyncio.get_running_loop()
    accept, errors = loop.sock_accept, [OSError(code, "gone")] * 3

    async def failing(listening: socket.socket) -> object:
        if errors:
            raise errors.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    before = {reason: REFUSALS[reason].value for reason in ("connections", "descriptors")}
    started = loop.time()
    await scene.open()
    assert await (await scene.connect()).is_open()
    assert not errors
    assert loop.time() - started < 0.4
    assert {reason: REFUSALS[reason].value for reason in before} == before


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_machine_without_resources_is_given_a_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    loop = asyncio.get_running_loop()
    accept, errors = loop.sock_accept, [OSError(code, "none left")]

    async def failing(listening: socket.socket) -> object:
        if errors:
            raise errors.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    started = loop.time()
    await scene.open()
    assert await (await scene.connect()).is_open()
    assert loop.time() - started >= 0.5


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is left to the garbage collector; a full collection may be minutes away."""
    gc.collect()
    before = connections_in_memory()
    gc.disable()
    yield
    left = connections_in_memory() - before
    gc.enable()
    assert left == 0


def connections_in_memory() -> int:
    return sum(type(each) is Connection for each in gc.get_objects())


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_connection_that_has_ended_leaves_nothing_to_the_garbage_collector(scene: Scene, *, tls: bool) -> None:
    """Its TLS buffers take 100 KB and more."""
    await scene.open(tls=tls)
    for _ in range(5):
        connection = await scene.connect()
        assert await connection.ask()
        connection.writer.write(head_of(20_000) + b"x" * 10_000)
        await eventually(lambda: scene.pending_bytes >= 10_000)
        await connection.abort()
        await eventually(lambda: scene.listener.count == 0)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("ends", ["client", "service"])
async def test_handshake_that_fails_leaves_nothing_to_the_garbage_collector(scene: Scene, ends: str) -> None:
    """Whether the client goes, or does not go on in time."""
    await scene.open(tls=True)
    clients = await scene.flood(5, plain=True)
    await eventually(lambda: scene.listener.count == 5)
    if ends == "client":
        for client in clients:
            await client.abort()
    await eventually(lambda: scene.listener.count == 0)


async def test_a_large_body_is_joined_once_and_not_copied() -> None:
    """With an answer of its size, what is kept is twice the body at most: kube-scheduler may send all whole nodes."""

    async def echo(body: bytes) -> Reply:
        return Reply(b"[%b]" % body)

    route = Route("filter", echo, lambda body, _: body)
    limits = Limits(body_bytes=64 * MIB, pending_bytes=64 * MIB)
    connection = Connection(
        Listener("scheduler", PostRoutes({"/pods": route}, draining=bool, token_bytes=bytes), limits)
    )
    peer, pieces = create_autospec(asyncio.Transport, instance=True), 512  # which reads at once
    connection.connection_made(peer)
    await asyncio.sleep(0)
    tracemalloc.start()
    try:
        connection.data_received(head_of(pieces * 64 * 1024))
        for number in range(pieces):
            connection.data_received(bytes([number % 256]) * 64 * 1024)
        await some_turns()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        connection.connection_lost(None)
        await asyncio.sleep(0)
    assert sum(len(call.args[0]) for call in peer.write.call_args_list) > pieces * 64 * 1024
    assert peak < 2.5 * pieces * 64 * 1024
