"""What callers who show a token get, and how long an answer waits for them."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Mapping

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from pytest_aiohttp.plugin import AiohttpClient
from structlog.testing import capture_logs

from extender.kubernetes.authentication_v1 import UserInfo
from extender.server import authenticated
from extender.server.authenticated import Post, authenticated_app
from extender.server.routes import REQUESTS

LARGE = b"x" * (32 << 20)  # more than a kernel keeps for a connection


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    """The address of a server with a large answer at `/observed` and a small one at `/facts`."""

    async def large(_user: UserInfo, _query: Mapping[str, str]) -> bytes:
        return LARGE

    async def small(_user: UserInfo, _query: Mapping[str, str]) -> bytes:
        return b"{}"

    async def identify(token: str, _address: str) -> UserInfo | None:
        return UserInfo(username=token)

    async def size(_user: UserInfo, body: bytes) -> bytes:
        return b"%d" % len(body)

    posts = {"/questions": Post("facts", size)}
    app = authenticated_app({"/observed": large, "/facts": small}, identify, posts)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0]
    await runner.cleanup()


async def open_slow(address: tuple[str, int], path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the path was asked for, and little is read ahead."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, address)
    reader, writer = await asyncio.open_connection(sock=end, limit=4096)
    writer.write(b"GET %b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer auditor\r\n\r\n" % path.encode())
    return reader, writer


async def test_an_answer_that_is_not_read_ends_its_connection(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that callers who do not read cannot fill the memory with answers."""
    monkeypatch.setattr(authenticated, "ANSWER_SECONDS", 0.2)
    reader, writer = await open_slow(address, "/observed")
    await asyncio.sleep(0.6)
    received = 0
    try:
        async with asyncio.timeout(10):
            while piece := await reader.read(1 << 20):
                received += len(piece)
    except ConnectionError:
        pass
    assert 4096 < received < len(LARGE)
    writer.close()


async def test_an_answer_that_is_read_in_time_is_whole(address: tuple[str, int]) -> None:
    """Also a large one, and the connection serves another request."""
    reader, writer = await open_slow(address, "/observed")
    async with asyncio.timeout(20):
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(LARGE)) == LARGE
        writer.write(b"GET /facts HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer auditor\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_caller_that_leaves_before_its_answer_is_no_failure(address: tuple[str, int]) -> None:
    """Nothing is logged as a defect."""
    with capture_logs() as logged:
        _, writer = await open_slow(address, "/observed")
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.2)
    assert not logged


async def test_a_caller_that_leaves_within_its_body_is_no_failure(address: tuple[str, int]) -> None:
    """It leaves nothing to the garbage collector either, which may come hours later, and pieces of bodies are large."""
    before = REQUESTS["facts"]["bad_request"].value
    gc.collect()
    requests = sum(type(each) is web.Request for each in gc.get_objects())
    gc.disable()
    try:
        with capture_logs() as logged:
            for number in range(1, 4):
                _, writer = await asyncio.open_connection(*address)
                writer.write(b"POST /questions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer auditor\r\n")
                writer.write(b"Content-Length: 9000\r\n\r\n" + b"x" * 5000)
                await asyncio.sleep(0.05)
                writer.transport.abort()
                async with asyncio.timeout(5):
                    while REQUESTS["facts"]["bad_request"].value < before + number:
                        await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not logged
        assert sum(type(each) is web.Request for each in gc.get_objects()) == requests
    finally:
        gc.enable()


async def test_one_machine_is_one_caller_by_whatever_address_it_asks(aiohttp_client: AiohttpClient) -> None:
    """Each address has a share of the reviews of tokens, and a machine has 64 bits of IPv6 addresses to choose from."""
    seen: list[str] = []

    async def identify(_token: str, address: str) -> UserInfo | None:
        seen.append(address)
        return None

    remotes = iter(["2001:db8:1:2::3", "2001:db8:1:2:ffff::", "2001:db8:1:3::3", "::ffff:192.0.2.1", "192.0.2.1"])

    @web.middleware
    async def come_from_elsewhere(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await handler(request.clone(remote=next(remotes)))

    async def nothing(_user: UserInfo, _query: Mapping[str, str]) -> bytes:
        return b"{}"

    app = authenticated_app({"/facts": nothing}, identify)
    app.middlewares.append(come_from_elsewhere)
    client = await aiohttp_client(app)
    for _ in range(5):
        async with client.get("/facts", headers={"Authorization": "Bearer invented"}) as response:
            assert response.status == 401
    assert seen == ["2001:db8:1:2::/64"] * 2 + ["2001:db8:1:3::/64"] + ["192.0.2.1"] * 2
