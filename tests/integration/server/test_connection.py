"""A hot path's connection, spoken by hand: framing, and who answers what, we at once or aiohttp."""

import asyncio
import email
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime

import pytest
from aiohttp import web

from extender.errors import InvalidRequest
from extender.metrics import REGISTRY
from extender.server.connection import KEEP_ALIVE_SECONDS
from extender.server.listener import Listener, open_listener
from extender.server.routes import FastConnection, FastServer, Reply, Route, route_server

LIMIT_BYTES = 1000
PATH = "/scheduler/filter"


class Letters:
    """Answers with a JSON string of as many letters as the body says, at once if that is allowed and possible."""

    def __init__(self) -> None:
        self.is_direct = True
        self.answered_nowait = 0
        self.later = 0

    async def answer(self, body: bytes) -> Reply:
        """The long way."""
        self.later += 1
        await asyncio.sleep(0)
        return self._reply(body.removeprefix(b"wait"))

    def answer_nowait(self, body: bytes) -> Reply | None:
        """The short way, but for a body that begins with `wait`."""
        if not self.is_direct or body.startswith(b"wait"):
            return None
        reply = self._reply(body)
        self.answered_nowait += 1
        return reply

    @staticmethod
    def _reply(body: bytes) -> Reply:
        if body == b"bug":
            raise ZeroDivisionError
        if not body.strip().isdigit():
            raise InvalidRequest("no number")
        return Reply(b'"%b"' % (b"x" * int(body)))


@pytest.fixture(params=["at once", "by aiohttp"])
def letters(request: pytest.FixtureRequest) -> Letters:
    """Either way; a test of one of them asks for `direct`."""
    made = Letters()
    made.is_direct = request.param == "at once"
    return made


@pytest.fixture
def draining() -> list[bool]:
    """Whether the server drains: append to it to begin."""
    return []


@pytest.fixture
async def server(letters: Letters, draining: list[bool]) -> FastServer:
    """Answers under /scheduler/filter."""
    endpoint = Route("filter", letters.answer, lambda _body, event_id: b'{"id":"%b"}' % event_id.encode())
    endpoints = {PATH: Route(endpoint.name, endpoint.answer, endpoint.fallback, letters.answer_nowait)}
    return route_server(endpoints, body_limit_bytes=LIMIT_BYTES, draining=lambda: bool(draining))


@pytest.fixture
async def listener(server: FastServer) -> AsyncIterator[Listener]:
    """A port of the server."""
    opened = await open_listener("scheduler", web.ServerRunner(server, shutdown_timeout=1), "127.0.0.1", 0)
    yield opened
    await opened.close()


def request_of(body: str, version: str = "1.1", *headers: str) -> bytes:
    """A request's bytes."""
    head = [f"POST {PATH}?timeout=1s HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", body]).encode()


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> tuple[str, Message, bytes]:
        """Status line, headers and body of the next answer."""
        status, _, head = (await self.reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")
        answered = email.message_from_string(head)
        return status, answered, await self.reader.readexactly(int(answered["Content-Length"]))

    async def ask(self, body: int | str, version: str = "1.1", *headers: str) -> tuple[str, Message, bytes]:
        """The answer to this."""
        self.writer.write(request_of(str(body), version, *headers))
        return await self.read()

    async def close(self) -> None:
        """Hangs up."""
        self.writer.close()
        await self.writer.wait_closed()

    async def abort(self) -> None:
        """Hangs up, whatever state the connection is in."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def connect(listener: Listener) -> Peer:
    """A new connection."""
    host, port = listener.address.split(":")
    return Peer(*await asyncio.open_connection(host, int(port)))


@pytest.fixture
async def peer(listener: Listener) -> AsyncIterator[Peer]:
    """A connection to the listener."""
    opened = await connect(listener)
    yield opened
    await opened.close()


direct = pytest.mark.parametrize("letters", ["at once"], indirect=True)


async def test_head_says_what_http_asks_for_and_no_version_of_ours(peer: Peer) -> None:
    """Type, length and date; nothing that HTTP/1.1 takes for granted, and no library's version."""
    status, headers, body = await peer.ask(5)
    assert status == "HTTP/1.1 200 OK"
    assert {*headers} - {"Server"} == {"Content-Length", "Content-Type", "Date"}
    assert headers["Server"] in (None, "multiarch-extender")
    assert headers["Content-Type"] == "application/json"
    assert body == b'"xxxxx"'
    assert headers["Date"].endswith(" GMT")
    assert abs(datetime.now(UTC) - parsedate_to_datetime(headers["Date"])) < timedelta(minutes=1)


async def test_answers_of_every_length_follow_each_other_on_a_connection(peer: Peer, letters: Letters) -> None:
    """Short ones are copied behind their head, long ones handed over beside it; both arrive whole."""
    lengths = (0, 1, 100, 16_000, 16_381, 16_382, 16_383, 200_000, 5_000_000, 3)
    for length in lengths:
        _, _, body = await peer.ask(length)
        assert json.loads(body) == "x" * length
    assert (letters.answered_nowait, letters.later) == ((len(lengths), 0) if letters.is_direct else (0, len(lengths)))


@pytest.mark.parametrize(
    ("version", "sent", "said", "ends"),
    [
        ("1.1", (), None, False),
        ("1.1", ("Connection: close",), "close", True),
        ("1.0", (), None, True),
        ("1.0", ("Connection: keep-alive",), "keep-alive", False),
    ],
    ids=["kept", "closed", "old", "old-kept"],
)
async def test_connection_ends_when_the_caller_wants_it(
    peer: Peer, version: str, sent: tuple[str, ...], said: str | None, *, ends: bool
) -> None:
    """As RFC 9112, section 9.3 has it, and the answer says so where that version does not take it for granted."""
    _, headers, _ = await peer.ask(1, version, *sent)
    assert headers["Connection"] == said
    if ends:
        assert await peer.reader.read() == b""
    else:
        assert (await peer.ask(2))[2] == b'"xx"'


async def test_draining_ends_the_connection_after_its_answer(peer: Peer, draining: list[bool]) -> None:
    """And says so, in either way."""
    assert (await peer.ask(1))[1]["Connection"] is None
    draining.append(True)
    status, headers, body = await peer.ask(20_000)
    assert (status, headers["Connection"], len(body)) == ("HTTP/1.1 200 OK", "close", 20_002)
    assert await peer.reader.read() == b""


async def test_requests_sent_together_are_answered_in_order(peer: Peer) -> None:
    """Nobody pipelines here, but a proxy may."""
    peer.writer.write(b"".join(request_of(str(number)) for number in (1, 2, 3)))
    for number in (1, 2, 3):
        assert (await peer.read())[2] == b'"%b"' % (b"x" * number)


async def test_a_request_may_be_cut_anywhere(listener: Listener) -> None:
    """One answer, whichever bytes come later."""
    request = request_of("7")
    for cut in range(1, len(request)):
        peer = await connect(listener)
        peer.writer.write(request[:cut])
        await peer.writer.drain()
        await asyncio.sleep(0.001 if cut % 10 == 0 else 0)  # some arrive apart, some together
        peer.writer.write(request[cut:])
        assert (await peer.read())[2] == b'"xxxxxxx"', cut
        assert (await peer.ask(2))[2] == b'"xx"', cut
        await peer.close()


@pytest.mark.parametrize("seed", range(20))
async def test_any_requests_in_any_pieces_are_each_answered_in_order(listener: Listener, seed: int) -> None:
    """Usual and unusual ones, such that wait and such that do not, on one connection, cut and joined at random."""
    chance = random.Random(seed)
    numbers = [chance.randrange(100) for _ in range(30)]
    usual = [request_of(f"{chance.choice(['', 'wait'])}{number}") for number in numbers[:20]]
    unusual = [request_of(str(number), "1.1", "X-Unusual: yes") for number in numbers[20:]]
    stream = b"".join(usual + unusual)
    peer = await connect(listener)
    while stream:
        cut = chance.choice([1, 50, 100, 107, 108, 300])
        peer.writer.write(stream[:cut])
        stream = stream[cut:]
        if chance.random() < 0.3:
            await asyncio.sleep(0.001)
    for number in numbers:
        assert (await peer.read())[2] == b'"%b"' % (b"x" * number)
    await peer.close()


@direct
@pytest.mark.parametrize(
    "fields",
    [
        "User-Agent: Go-http-client/1.1|Content-Length: 1|Content-Type: application/json|Accept-Encoding: gzip",
        "User-Agent: kube-apiserver-admission|Content-Length: 1|Accept: application/json, */*|Accept-Encoding: gzip",
        "Accept: */*|Accept-Encoding: gzip, deflate|Content-Length: 1|Content-Type: application/octet-stream",
    ],
    ids=["scheduler", "API server", "aiohttp"],
)
async def test_what_the_callers_write_is_usual(peer: Peer, letters: Letters, fields: str) -> None:
    """Whatever the order of the fields."""
    peer.writer.write(
        "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1:8880", *fields.split("|"), "", "3"]).encode()
    )
    assert (await peer.read())[2] == b'"xxx"'
    assert (letters.answered_nowait, letters.later) == (1, 0)


@direct
async def test_what_has_to_wait_is_aiohttps_and_the_next_request_is_not(peer: Peer, letters: Letters) -> None:
    """kube-scheduler keeps its connections, and a cold image must not make a slow one of one."""
    for _ in range(10):
        assert (await peer.ask(1))[2] == b'"x"'
        assert (await peer.ask("wait2"))[2] == b'"xx"'
    assert (letters.answered_nowait, letters.later) == (10, 10)


@direct
@pytest.mark.parametrize(
    ("start", "fields", "body", "status"),
    [
        pytest.param("POST", ["X-Any: y", "Content-Length: 1"], "3", 200, id="field"),
        pytest.param("POST", ["Content-Length: 1", "Connection: keep-alive"], "3", 200, id="connection"),
        pytest.param("POST", ["Transfer-Encoding: chunked"], "1\r\n3\r\n0\r\n\r\n", 200, id="chunked"),
        pytest.param("POST", ["Content-Length: 1", "Content-Length: 1"], "3", 400, id="two lengths"),
        pytest.param("POST", ["Content-Length: 5", "Transfer-Encoding: chunked"], "0\r\n\r\n", 400, id="both"),
        pytest.param("POST", ["Content-Length: -1"], "3", 400, id="negative"),
        pytest.param("POST", ["Host: y", "Content-Length: 1"], "3", 400, id="two hosts"),
        pytest.param("POST", ["User-Agent: a", "Content-Length: 1", "user-agent: b"], "3", 400, id="two agents"),
        pytest.param("post", ["Content-Length: 1"], "3", 400, id="lower-case method"),
        pytest.param("POST", ["Content-Length: 1", "bad field"], "3", 400, id="bad field"),
        pytest.param("POST", ["Content-Length: 1001"], "x" * 1001, 413, id="too large"),
        pytest.param("PUT", ["Content-Length: 1"], "3", 405, id="method"),
        pytest.param("POST /other", ["Content-Length: 1"], "3", 404, id="path"),
        pytest.param("POST", ["Content-Length: 2"], "no", 400, id="bad body"),
        pytest.param("POST", ["Content-Length: 0"], "", 400, id="no body"),
        pytest.param("POST", ["User-Agent: " + "x" * 3000, "Content-Length: 1"], "3", 200, id="long head"),
        pytest.param("nonsense\r\n", [], "", 400, id="nonsense"),
    ],
)
async def test_the_unusual_is_aiohttps(
    peer: Peer, letters: Letters, start: str, fields: list[str], body: str, status: int
) -> None:
    """It knows HTTP better, and its answer says what is wrong."""
    method, _, path = start.partition(" ")
    peer.writer.write("\r\n".join([f"{method} {path or PATH} HTTP/1.1", "Host: x", *fields, "", body]).encode())
    said = await peer.reader.readuntil(b"\r\n")
    assert said.split()[1] == str(status).encode()
    assert letters.answered_nowait == 0


@direct
async def test_a_request_without_a_host_is_refused(peer: Peer, letters: Letters) -> None:
    """RFC 9112, section 3.2: a server answers 400 to it."""
    peer.writer.write(f"POST {PATH} HTTP/1.1\r\nContent-Length: 1\r\n\r\n3".encode())
    assert (await peer.reader.readuntil(b"\r\n")).split()[1] == b"400"
    assert letters.answered_nowait == 0


@direct
async def test_a_head_of_many_fields_takes_no_time(peer: Peer) -> None:
    """Whoever can connect could otherwise stop the event loop with some hundred bytes."""
    started = time.process_time()
    peer.writer.write(b"POST %b HTTP/1.1\r\n%b\r\n" % (PATH.encode(), b"Accept: x\r\n" * 24))
    assert (await peer.reader.readuntil(b"\r\n")).split()[1] == b"400"
    assert time.process_time() - started < 0.5


@direct
async def test_who_does_not_read_is_not_answered_at_once(peer: Peer, letters: Letters) -> None:
    """aiohttp waits until its answer is taken, so that answers do not pile up here."""
    for _ in range(5):
        peer.writer.write(request_of("9999999"))
        await peer.writer.drain()
        await asyncio.sleep(0.05)
    assert letters.answered_nowait < 5
    for _ in range(5):
        assert len((await peer.read())[2]) == 10_000_001


@direct
async def test_our_mistake_is_answered_with_the_least_harm(peer: Peer, letters: Letters) -> None:
    """At once, counted once, with the id that is in the log; `answer` is not asked to make it again."""
    labels = {"endpoint": "filter", "outcome": "failed"}
    before = REGISTRY.get_sample_value("multiarch_requests_total", labels) or 0
    status, _, body = await peer.ask("bug")
    assert status == "HTTP/1.1 200 OK"
    assert len(json.loads(body)["id"]) == 16
    assert letters.later == 0
    assert REGISTRY.get_sample_value("multiarch_requests_total", labels) == before + 1


@direct
async def test_a_busy_connection_does_not_grow_old(peer: Peer, server: FastServer) -> None:
    """It is closed when nobody has asked for long, as aiohttp does it, not when it was opened long ago."""
    await peer.ask(1)
    (protocol,) = server.connections
    assert isinstance(protocol, FastConnection)
    assert protocol.idle_since is not None
    before = protocol.idle_since
    await peer.ask(1)
    assert before < protocol.idle_since <= (True, asyncio.get_running_loop().time())
    assert protocol.keepalive_timeout == KEEP_ALIVE_SECONDS
