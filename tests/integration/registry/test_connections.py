"""How many connections are kept for the next request, and that one which is not ends whatever its peer does."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import trustme
from yarl import URL

from extender.registry import http
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session, send
from testbed.eventually import eventually
from testbed.faulty_registry import FaultyRegistry
from tests.integration.registry.conftest import ON_LOOPBACK, Talk, answers, talking

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


async def test_a_peer_that_never_agrees_to_the_end_of_tls_keeps_no_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has half a minute for that in asyncio, and a name of its own for each connection that it wants to keep."""
    monkeypatch.setattr(http, "_MOST_IDLE", 0)
    authority, ended = trustme.CA(), asyncio.Event()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps from the registry whatever the client says after its request."""
        from_registry, to_registry = await asyncio.open_connection(*registry.host.split(":"))

        async def bring() -> None:
            while chunk := await from_registry.read(1 << 16):
                writer.write(chunk)

        bringing = asyncio.create_task(bring())
        while (chunk := await reader.read(1 << 16)) and not registry.shown:
            to_registry.write(chunk)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        ended.set()
        bringing.cancel()
        to_registry.close()

    async with (
        FaultyRegistry(answers(429), authority=authority) as registry,
        talking(relay) as host,
        open_session(guard=ON_LOOPBACK, trust=RegistryTrust([str(tmp_path / "ca.pem")])) as session,
    ):
        answer = await send(session, "GET", URL(f"https://{host}/"), headers={}, limit_bytes=10, seconds=10)
        assert answer.status == 429
        async with asyncio.timeout(15):  # half of the time that the peer would have
            await ended.wait()
