"""The hot paths' answer as bytes on a connection: its head, and what becomes of the connection."""

import asyncio
import email
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime

import pytest
from aiohttp import web

from extender.server.endpoints import Endpoint, Reply, endpoint_server
from extender.server.listener import Listener, open_listener


async def as_long_as_asked(body: bytes) -> Reply:
    """A JSON string of as many letters as the body says."""
    return Reply(b'"%b"' % (b"x" * int(body)))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """Answers under /scheduler/filter."""
    endpoints = {"/scheduler/filter": Endpoint("filter", as_long_as_asked, lambda _body, _event_id: b"{}")}
    server = endpoint_server(endpoints, body_limit_bytes=1000, draining=lambda: False)
    opened = await open_listener("scheduler", web.ServerRunner(server, shutdown_timeout=1), "127.0.0.1", 0)
    yield opened
    await opened.close()


class Peer:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, letters: int, version: str = "1.1", *headers: str) -> tuple[str, Message, bytes]:
        """Status line, headers and body of the answer."""
        body = str(letters)
        head = [f"POST /scheduler/filter HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
        self.writer.write("\r\n".join([*head, "", body]).encode())
        status, _, rest = (await self.reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")
        answered = email.message_from_string(rest)
        return status, answered, await self.reader.readexactly(int(answered["Content-Length"]))


@pytest.fixture
async def peer(listener: Listener) -> AsyncIterator[Peer]:
    """A connection to the listener."""
    host, port = listener.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield Peer(reader, writer)
    writer.close()
    await writer.wait_closed()


async def test_head_says_what_http_asks_for_and_no_more(peer: Peer) -> None:
    """Type, length and date; nothing of the software, and nothing that HTTP/1.1 takes for granted."""
    status, headers, body = await peer.ask(5)
    assert status == "HTTP/1.1 200 OK"
    assert sorted(headers) == ["Content-Length", "Content-Type", "Date"]
    assert headers["Content-Type"] == "application/json"
    assert body == b'"xxxxx"'
    assert headers["Date"].endswith(" GMT")
    assert abs(datetime.now(UTC) - parsedate_to_datetime(headers["Date"])) < timedelta(minutes=1)


async def test_answers_of_every_length_follow_each_other_on_a_connection(peer: Peer) -> None:
    """Short ones are copied behind their head, long ones handed over beside it; both arrive whole."""
    for letters in (0, 1, 100, 16_000, 16_381, 16_382, 16_383, 200_000, 5_000_000, 3):
        _, _, body = await peer.ask(letters)
        assert json.loads(body) == "x" * letters


@pytest.mark.parametrize(
    ("version", "asked", "said", "ends"),
    [
        ("1.1", (), None, False),
        ("1.1", ("Connection: close",), "close", True),
        ("1.0", (), "close", True),
        ("1.0", ("Connection: keep-alive",), "keep-alive", False),
    ],
    ids=["kept", "closed", "old", "old-kept"],
)
async def test_connection_ends_when_the_caller_wants_it(
    peer: Peer, version: str, asked: tuple[str, ...], said: str | None, *, ends: bool
) -> None:
    """As RFC 9112, section 9.3 has it, and the answer says so where that version does not take it for granted."""
    _, headers, _ = await peer.ask(1, version, *asked)
    assert headers["Connection"] == said
    if ends:
        assert await peer.reader.read() == b""
    else:
        assert (await peer.ask(2))[2] == b'"xx"'


async def test_requests_sent_at_once_are_answered_in_order(peer: Peer) -> None:
    """Nobody pipelines here, but a proxy may."""
    request = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d"
    peer.writer.write(b"".join(request % number for number in (1, 2, 3)))
    for number in (1, 2, 3):
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % (number + 2) in head
        assert await peer.reader.readexactly(number + 2) == b'"%b"' % (b"x" * number)
