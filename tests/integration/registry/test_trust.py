"""Bundles of authorities that change while the session is open."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from yarl import URL

from extender.errors import RegistryUnavailable
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session, send
from extender.watched_files import RELOADS
from tests.integration.registry.conftest import ON_LOOPBACK

COUNTS = RELOADS["registry.ca_files"]


class Server:
    """Answers over TLS after `open` is set, and closes each connection after its answer."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.visited = asyncio.Event()
        self.url = URL()

    async def answer(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.visited.set()
        await self.open.wait()
        return web.Response(text="yes", headers={"Connection": "close"})


@asynccontextmanager
async def running(authority: trustme.CA) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = Server()
    runner = web.ServerRunner(web.Server(server.answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server.url = URL(f"https://127.0.0.1:{runner.addresses[0][1]}/")
    try:
        yield server
    finally:
        await runner.cleanup()


async def test_new_authorities_are_for_new_connections(tmp_path: Path) -> None:
    """One taken away is trusted no more, one added is; a request in flight ends as it began."""
    old, new = trustme.CA(), trustme.CA()
    bundle = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(bundle)
    trust = RegistryTrust([str(bundle)])
    async with running(old) as first, running(new) as second, open_session(guard=ON_LOOPBACK, trust=trust) as session:

        async def ask(server: Server) -> bytes:
            return (await send(session, "GET", server.url, headers={}, limit_bytes=100)).body

        assert await ask(first) == b"yes"
        with pytest.raises(RegistryUnavailable, match="a certificate that is not trusted"):
            await ask(second)
        first.open.clear()
        first.visited.clear()
        in_flight = asyncio.create_task(ask(first))
        await first.visited.wait()
        new.cert_pem.write_to_path(bundle)
        assert trust.files.reload_if_changed()
        assert await ask(second) == b"yes"
        first.open.set()
        assert await in_flight == b"yes"
        with pytest.raises(RegistryUnavailable, match="a certificate that is not trusted"):
            await ask(first)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB", None], ids=["empty", "half", "gone"])
async def test_a_bundle_that_breaks_keeps_the_old_authorities(tmp_path: Path, content: bytes | None) -> None:
    """It is counted once."""
    authority = trustme.CA()
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(bundle)
    trust = RegistryTrust([str(bundle)])
    refused = COUNTS["refused"].value
    if content is None:
        bundle.unlink()
    else:
        bundle.write_bytes(content)
    for _ in range(3):
        assert not trust.files.reload_if_changed()
    assert COUNTS["refused"].value == refused + 1
    async with running(authority) as server, open_session(guard=ON_LOOPBACK, trust=trust) as session:
        assert (await send(session, "GET", server.url, headers={}, limit_bytes=100)).body == b"yes"


async def test_a_registry_behind_a_proxy_is_reached_over_its_own_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy's answer comes first over the same connection, and has no body."""
    authority, asked = trustme.CA(), []
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode())
        there = await asyncio.open_connection(*asked[-1].split(":"))
        writer.write(b"HTTP/1.1 200 Connection established\r\nProxy-agent: here\r\n\r\n")
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    async with running(authority) as server, await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        trust = RegistryTrust([str(tmp_path / "ca.pem")])
        async with open_session(guard=ON_LOOPBACK, trust=trust) as session:
            assert (await send(session, "GET", server.url, headers={}, limit_bytes=100)).body == b"yes"
    assert asked == [f"127.0.0.1:{server.url.port}"]
