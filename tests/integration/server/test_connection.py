"""A hot path's connection, spoken by hand: framing, and who answers what, we at once or aiohttp."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime

import pytest
from structlog.testing import capture_logs

from extender.errors import InvalidRequest
from extender.metrics import REGISTRY
from extender.server.http import MIB, Limits, Listener, open_listener
from extender.server.routes import PostRoutes, Reply, Route
from testbed.eventually import eventually
from testbed.machines import running_machine
from tests.integration.server.raw_http import RawConnection, port_of

pytestmark = pytest.mark.usefixtures("simulated_time")
LIMIT_BYTES = 1000
PATH = "/scheduler/filter"


class Letters:
    """Answers with a JSON string of as many letters as the body says, at once if that is allowed and possible."""

    def __init__(self) -> None:
        self.is_direct = True
        self.at_once = 0
        self.later = 0
        self.may_answer = asyncio.Event()  # what waits
        self.may_answer.set()

    async def answer(self, body: bytes) -> Reply:
        """Waits for a turn of the event loop if the body begins with `wait`, or has to."""
        if self.is_direct and not body.startswith(b"wait"):
            reply = self._reply(body)
            self.at_once += 1
            return reply
        self.later += 1
        await asyncio.sleep(0)
        await self.may_answer.wait()
        return self._reply(body.removeprefix(b"wait"))

    @staticmethod
    def _reply(body: bytes) -> Reply:
        if body == b"bug":
            raise ZeroDivisionError
        if not body.strip().isdigit():
            raise InvalidRequest("no number")
        return Reply(b'"%b"' % (b"x" * int(body)))


@pytest.fixture(params=["at once", "later"])
def letters(request: pytest.FixtureRequest) -> Letters:
    """Either way; a test of one of them asks for `direct`."""
    made = Letters()
    made.is_direct = request.param == "at once"
    return made


@pytest.fixture
def draining() -> list[bool]:
    return []


@pytest.fixture
async def listener(letters: Letters, draining: list[bool]) -> AsyncIterator[Listener]:
    route = Route("filter", letters.answer, lambda _body, event_id: b'{"id":"%b"}' % event_id.encode())
    service = PostRoutes({PATH: route}, draining=lambda: bool(draining), token_bytes=bytes)
    opened = open_listener(
        "scheduler",
        service,
        "127.0.0.1",
        0,
        bind=running_machine().bind,
        limits=Limits(body_bytes=LIMIT_BYTES, pending_bytes=16 * MIB),
    )
    yield opened
    await opened.close()


def request_of(body: str, version: str = "1.1", *headers: str) -> bytes:
    head = [f"POST {PATH}?timeout=1s HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", body]).encode()


direct = pytest.mark.parametrize("letters", ["at once"], indirect=True)


class Peer(RawConnection):
    """A connection that asks for letters."""

    async def ask(self, body: int | str, version: str = "1.1", *headers: str) -> tuple[int, Message, bytes]:
        self.writer.write(request_of(str(body), version, *headers))
        return await self.read()


async def connect(listener: Listener) -> Peer:
    return Peer(*await asyncio.open_connection("127.0.0.1", port_of(listener)))


@pytest.fixture
async def peer(listener: Listener) -> AsyncIterator[Peer]:
    opened = await connect(listener)
    yield opened
    await opened.abort()


async def test_head_says_what_http_asks_for_and_no_version_of_ours(peer: Peer) -> None:
    """Type, length and date; nothing that HTTP/1.1 takes for granted, and no library's version."""
    status, headers, body = await peer.ask(5)
    assert status == 200
    assert {*headers} - {"Server"} == {"Content-Length", "Content-Type", "Date"}
    assert headers["Server"] in (None, "multiarch-extender")
    assert headers["Content-Type"] == "application/json"
    assert body == b'"xxxxx"'
    assert headers["Date"].endswith(" GMT")
    assert abs(datetime.now(UTC) - parsedate_to_datetime(headers["Date"])) < timedelta(minutes=1)


async def test_answers_of_every_length_follow_each_other_on_a_connection(peer: Peer, letters: Letters) -> None:
    """Short ones are copied behind their head, long ones handed over beside it; both arrive whole."""
    lengths = (0, 1, 100, 16_000, 65_533, 65_534, 65_535, 200_000, 5_000_000, 3)
    for length in lengths:
        _, _, body = await peer.ask(length)
        assert json.loads(body) == "x" * length
    assert (letters.at_once, letters.later) == ((len(lengths), 0) if letters.is_direct else (0, len(lengths)))


@pytest.mark.parametrize(
    ("version", "sent", "said", "ends"),
    [
        ("1.1", (), None, False),
        ("1.1", ("Connection: close",), "close", True),
        ("1.0", (), None, True),
    ],
    ids=["kept", "closed", "old"],
)
async def test_connection_ends_when_the_caller_wants_it(
    peer: Peer, version: str, sent: tuple[str, ...], said: str | None, *, ends: bool
) -> None:
    """As RFC 9112, section 9.3 has it, and the answer says so where that version does not take it for granted."""
    _, headers, _ = await peer.ask(1, version, *sent)
    assert headers["Connection"] == said
    if ends:
        assert await peer.ends() == b""
    else:
        assert (await peer.ask(2))[2] == b'"xx"'


async def test_draining_ends_the_connection_after_its_answer(peer: Peer, draining: list[bool]) -> None:
    """And says so, in either way."""
    assert (await peer.ask(1))[1]["Connection"] is None
    draining.append(True)
    status, headers, body = await peer.ask(20_000)
    assert (status, headers["Connection"], len(body)) == (200, "close", 20_002)
    assert await peer.ends() == b""


@direct
async def test_what_comes_before_an_answer_ends_the_connection_with_it(peer: Peer, letters: Letters) -> None:
    """It is not read, and the answer, which says so, is not lost."""
    letters.may_answer.clear()
    peer.writer.write(request_of("wait1"))
    await eventually(lambda: letters.later > 0)
    peer.writer.write(request_of("2"))
    await peer.writer.drain()
    for _ in range(20):  # turns of the event loop, in which it arrives
        await asyncio.sleep(0.001)
    letters.may_answer.set()
    _, headers, body = await peer.read()
    assert (body, headers["Connection"]) == (b'"x"', "close")
    assert await peer.ends() == b""
    assert letters.at_once == 0


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
    assert (letters.at_once, letters.later) == (1, 0)


@direct
async def test_what_has_to_wait_makes_the_next_request_no_slower(peer: Peer, letters: Letters) -> None:
    """kube-scheduler keeps its connections, and a cold image must not make a slow one of one."""
    for _ in range(10):
        assert (await peer.ask(1))[2] == b'"x"'
        assert (await peer.ask("wait2"))[2] == b'"xx"'
    assert (letters.at_once, letters.later) == (10, 10)


@direct
async def test_a_head_of_many_fields_takes_no_time(peer: Peer) -> None:
    """Whoever can connect could otherwise stop the event loop with some hundred bytes."""
    started = time.process_time()
    peer.writer.write(b"POST %b HTTP/1.1\r\n%b\r\n" % (PATH.encode(), b"Accept: x\r\n" * 24))
    assert (await peer.reader.readuntil(b"\r\n")).split()[1] == b"400"
    assert time.process_time() - started < 0.5


@direct
async def test_who_does_not_read_gets_one_answer(peer: Peer, letters: Letters) -> None:
    """Nothing more is read until it is taken, so that answers do not pile up here."""
    for _ in range(5):
        peer.writer.write(request_of("9999999"))
        await peer.writer.drain()
        for _ in range(20):  # turns of the loop, in which the listener could read
            await asyncio.sleep(0)
    assert letters.at_once == 1
    assert len((await peer.read())[2]) == 10_000_001


@pytest.mark.parametrize("extra", [(), ("X-Unusual: yes",)], ids=["usual", "unusual"])
async def test_who_sends_nothing_more_has_the_answer(peer: Peer, extra: tuple[str, ...]) -> None:
    """A client may end its half of the connection once it has asked (RFC 9112, section 9.6)."""
    for body in ("5", "wait5"):
        half = Peer(*await asyncio.open_connection(*peer.writer.get_extra_info("peername")))
        half.writer.write(request_of(body, "1.1", *extra))
        half.writer.write_eof()
        status, _, text = await half.read()
        assert (status, text) == (200, b'"xxxxx"')
        assert await half.ends() == b""
        await half.abort()


async def test_half_a_request_ends_with_its_connection(peer: Peer, listener: Listener) -> None:
    peer.writer.write(request_of("55")[:-1])
    peer.writer.write_eof()
    assert await peer.ends() == b""
    await eventually(lambda: listener.count == 0)
    assert listener.pending_bytes == 0


async def test_who_expects_to_be_told_to_go_on_is_told(peer: Peer) -> None:
    """Before the body (RFC 9110, section 10.1.1), but not where the body would be refused."""
    request = request_of("5", "1.1", "Expect: 100-continue")
    peer.writer.write(request[:-1])
    assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.writer.write(request[-1:])
    status, _, text = await peer.read()
    assert (status, text) == (200, b'"xxxxx"')


async def test_who_expects_to_be_told_is_refused_at_once_where_the_body_is_too_large(peer: Peer) -> None:
    peer.writer.write(request_of("5" * (LIMIT_BYTES + 1), "1.1", "Expect: 100-continue")[:-LIMIT_BYTES])
    assert (await peer.read())[0] == 413
    assert await peer.ends() == b""


MALFORMED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "a bad version": b"GET / HTTP/9.7\r\nHost: x\r\n\r\n",
    "a bad name": b"GET / HTTP/1.1\r\nHost: x\r\nbad name: 1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a bad length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    "a long field": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    "a bad chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_request_is_refused_in_our_words_and_one_line(
    peer: Peer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is sent: no version of a library, and no traceback."""
    with capture_logs() as lines:
        peer.writer.write(MALFORMED[kind])
        status, headers, body = await peer.read()
        assert await peer.ends() == b""
    assert status == 400
    assert (headers["Content-Type"], headers["Server"]) == ("application/json", "multiarch-extender")
    assert list(json.loads(body)) == ["error"]
    [line] = lines
    assert (line["event"], line["log_level"], line["status"]) == ("request.rejected", "warning", 400)
    assert len(str(line)) < 500
    assert not caplog.records


@direct
async def test_our_mistake_is_answered_with_the_least_harm(peer: Peer, letters: Letters) -> None:
    """At once, counted once, with the id that is in the log; `answer` is not asked to make it again."""
    labels = {"endpoint": "filter", "outcome": "failed"}
    before = REGISTRY.get_sample_value("multiarch_requests_total", labels) or 0
    status, _, body = await peer.ask("bug")
    assert status == 200
    assert len(json.loads(body)["id"]) == 16
    assert letters.later == 0
    assert REGISTRY.get_sample_value("multiarch_requests_total", labels) == before + 1


async def test_a_request_behind_a_body_that_came_in_pieces_ends_the_connection_after_its_answer(peer: Peer) -> None:
    """It is not read, and the answer to the first is not lost."""
    first = request_of("  12")
    peer.writer.write(first[:-2])
    await peer.writer.drain()
    for _ in range(20):  # turns of the event loop, in which it arrives
        await asyncio.sleep(0.001)
    peer.writer.write(first[-2:] + request_of("3"))
    assert (await peer.read())[2] == json.dumps("x" * 12).encode()
    assert await peer.ends() == b""
