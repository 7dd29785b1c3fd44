"""What holds for every request on a hot path, over real HTTP."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extender.errors import InvalidRequest
from extender.metrics import REGISTRY
from extender.server.http import Limits, Listener, open_listener
from extender.server.routes import PostRoutes, Reply, Route

LIMIT_BYTES = 1000


async def answer(body: bytes) -> Reply:
    """Echo, with the two ways to go wrong on request."""
    if body == b"invalid":
        raise InvalidRequest("$.Pod: expected an object")
    if body == b"bug":
        raise ZeroDivisionError
    return Reply(b'{"echo":%d}' % len(body))


def fallback(_body: bytes, event_id: str) -> bytes:
    """What this endpoint says when it fails."""
    return json.dumps({"Error": event_id}).encode()


@pytest.fixture
def draining() -> list[bool]:
    """Whether the server drains: append to it to begin."""
    return []


@pytest.fixture
async def listener(draining: list[bool]) -> AsyncIterator[Listener]:
    """An echo under /scheduler/filter."""
    service = PostRoutes({"/scheduler/filter": Route("filter", answer, fallback)}, draining=lambda: bool(draining))
    opened = open_listener("scheduler", service, "127.0.0.1", 0, limits=Limits(body_bytes=LIMIT_BYTES))
    yield opened
    await opened.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as opened:
        yield opened


def count(outcome: str) -> float:
    """Filter requests counted under an outcome."""
    return REGISTRY.get_sample_value("multiarch_requests_total", {"endpoint": "filter", "outcome": outcome}) or 0.0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        pytest.param("POST", "/scheduler/filter", b"x" * 10, 200, '{"echo":10}', id="answer"),
        pytest.param("POST", "/scheduler/filter?timeout=1s", b"", 200, '{"echo":0}', id="query and empty body"),
        pytest.param("POST", "/scheduler/filter", b"x" * LIMIT_BYTES, 200, '{"echo":1000}', id="at the limit"),
        pytest.param(
            "POST", "/scheduler/filter", b"x" * (LIMIT_BYTES + 1), 413, "larger than 1000 bytes", id="over it"
        ),
        pytest.param("POST", "/scheduler/filter", b"x" * 100_000, 413, "larger than 1000 bytes", id="far over it"),
        pytest.param("POST", "/scheduler/filter", b"invalid", 400, "$.Pod: expected an object", id="bad body"),
        pytest.param("GET", "/scheduler/filter", b"", 405, "takes POST", id="method"),
        pytest.param("POST", "/filter", b"", 404, "/scheduler/filter", id="path"),
    ],
)
async def test_every_request_gets_a_status_and_a_reason(
    listener: Listener, session: aiohttp.ClientSession, method: str, path: str, body: bytes, status: int, says: str
) -> None:
    """Answers are 200; anything else says why in JSON."""
    async with session.request(method, f"http://{listener.address}{path}", data=io.BytesIO(body)) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (status, "application/json")
        assert says in text
        assert response.headers["Content-Length"] == str(len(text))


async def test_our_mistake_is_counted_and_answered_with_the_least_harm(
    listener: Listener, session: aiohttp.ClientSession
) -> None:
    """An unexpected exception gives a 200 with the harmless answer, whose id is in the log."""
    before = count("failed")
    async with session.post(f"http://{listener.address}/scheduler/filter", data=b"bug") as response:
        assert response.status == 200
        assert len((await response.json())["Error"]) == 16
    assert count("failed") == before + 1


async def test_a_body_in_pieces_is_read_whole(listener: Listener, session: aiohttp.ClientSession) -> None:
    """A chunked body is one body."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"ab"
            await asyncio.sleep(0)

    async with session.post(f"http://{listener.address}/scheduler/filter", data=pieces()) as response:
        assert await response.json() == {"echo": 10}


async def test_a_body_that_ends_early_harms_nobody(listener: Listener, session: aiohttp.ClientSession) -> None:
    """A caller that hangs up in mid-body is forgotten, and the next one is answered."""
    host, port = listener.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with session.post(f"http://{listener.address}/scheduler/filter", data=b"abc") as response:
        assert response.status == 200


async def test_connections_are_kept_until_draining_begins(
    listener: Listener, session: aiohttp.ClientSession, draining: list[bool]
) -> None:
    """An answer keeps its connection; once draining has begun it says that it will close."""
    url = f"http://{listener.address}/scheduler/filter"
    async with session.post(url, data=b"") as response:
        assert response.headers.get("Connection") != "close"
    draining.append(True)
    async with session.post(url, data=b"") as response:
        assert response.headers["Connection"] == "close"
