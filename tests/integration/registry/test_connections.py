"""How many connections are kept for the next request."""

import asyncio
import contextlib

import pytest
from yarl import URL

from extender.registry import http
from extender.registry.http import open_session, send
from testbed.eventually import eventually
from tests.integration.registry.conftest import ON_LOOPBACK, Talk, talking

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def test_the_newest_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hosts answer."""
    monkeypatch.setattr(http, "_MOST_IDLE", 2)
    monkeypatch.setattr(http, "_IDLE_SECONDS", 600.0)
    opened, kept = list[int](), set[int]()

    def serving(number: int) -> Talk:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(number)
            kept.add(number)
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(ANSWER)
            finally:
                kept.discard(number)

        return serve

    async with contextlib.AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(talking(serving(number))) for number in range(4)]
        async with open_session(guard=ON_LOOPBACK) as session:
            for host in (*hosts, *hosts[2:]):
                await send(session, "GET", URL(f"http://{host}/"), headers={}, limit_bytes=10, seconds=10)
            await eventually(lambda: kept == {2, 3})
            assert opened == [0, 1, 2, 3]
