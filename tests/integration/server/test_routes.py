"""What holds for every request on a hot path, over real HTTP."""

import io
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extender.errors import InvalidRequest
from extender.server.http import Limits, Listener, open_listener
from extender.server.routes import PostRoutes, Reply, Route

LIMIT_BYTES = 1000


async def answer(body: bytes) -> Reply:
    """Echo, or a refusal."""
    if body == b"invalid":
        raise InvalidRequest("$.Pod: expected an object")
    return Reply(b'{"echo":%d}' % len(body))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """An echo under /scheduler/filter."""
    service = PostRoutes({"/scheduler/filter": Route("filter", answer, lambda _body, _id: b"")}, draining=bool)
    opened = open_listener("scheduler", service, "127.0.0.1", 0, limits=Limits(body_bytes=LIMIT_BYTES))
    yield opened
    await opened.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as opened:
        yield opened


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
