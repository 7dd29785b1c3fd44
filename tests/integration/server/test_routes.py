"""Which addresses a listener takes, and what holds for every request on a hot path, over real HTTP."""

import asyncio
import io
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extender.errors import ConfigError, InvalidRequest
from extender.server.http import Limits, Listener, open_listener
from extender.server.operations import Operations
from extender.server.routes import PostRoutes, Reply, Route
from testbed.machines import running_machine
from tests.integration.server.raw_http import port_of

LIMIT_BYTES = 1000


async def answer(body: bytes) -> Reply:
    if body == b"invalid":
        raise InvalidRequest("$.Pod: expected an object")
    return Reply(b'{"echo":%d}' % len(body))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """An echo under /scheduler/filter."""
    service = PostRoutes(
        {"/scheduler/filter": Route("filter", answer, lambda _body, _id: b"")}, draining=bool, token_bytes=bytes
    )
    opened = open_listener(
        "scheduler", service, "127.0.0.1", 0, bind=running_machine().bind, limits=Limits(body_bytes=LIMIT_BYTES)
    )
    yield opened
    await opened.close()


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
    listener: Listener, method: str, path: str, body: bytes, status: int, says: str
) -> None:
    """Answers are 200; anything else says why in JSON."""
    url = f"http://{listener.address}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, data=io.BytesIO(body)) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (status, "application/json")
        assert says in text
        assert response.headers["Content-Length"] == str(len(text))


@pytest.fixture
async def everywhere() -> AsyncIterator[Listener]:
    """A listener on a free port of every address."""
    opened = open_listener(
        "admission", Operations({}, {}, clock=asyncio.get_running_loop().time), "", 0, bind=running_machine().bind
    )
    yield opened
    await opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_empty_host_is_every_address_of_both_families(everywhere: Listener, host: str) -> None:
    """One port answers on IPv4 and on IPv6, and the listener's address names it."""
    assert everywhere.address == f"[::]:{port_of(everywhere)}"
    url = f"http://{host}:{port_of(everywhere)}/livez"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert await response.text() == "ok\n"


async def test_port_that_is_taken_is_refused_with_its_address(everywhere: Listener) -> None:
    """The error names the setting and the address, also if that has no host."""
    port = port_of(everywhere)
    with pytest.raises(ConfigError, match=rf"operations\.listen: cannot listen on :{port}"):
        open_listener(
            "operations",
            Operations({}, {}, clock=asyncio.get_running_loop().time),
            "",
            port,
            bind=running_machine().bind,
        )
