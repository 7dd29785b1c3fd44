"""Bundles of authorities that change while the session is open."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from yarl import URL

from extender.errors import ConfigError, RegistryUnavailable
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session, send
from testbed.faulty_registry import FaultyRegistry
from tests.integration.registry.conftest import ON_LOOPBACK


class Server(FaultyRegistry):
    """Answers over TLS after `open` is set, and closes each connection after its answer."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(self.say_yes, authority=authority)
        self.open, self.visited = asyncio.Event(), asyncio.Event()
        self.open.set()

    async def say_yes(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.visited.set()
        await self.open.wait()
        return web.Response(text="yes", headers={"Connection": "close"})


async def ask(session: aiohttp.ClientSession, server: Server) -> bytes:
    return (await send(session, "GET", URL(server.url), headers={}, limit_bytes=100)).body


async def test_new_authorities_are_for_new_connections(tmp_path: Path) -> None:
    """One taken away is trusted no more, one added is; a request in flight ends as it began."""
    old, new = trustme.CA(), trustme.CA()
    bundle = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(bundle)
    trust = RegistryTrust([str(bundle)])
    async with Server(old) as first, Server(new) as second, open_session(guard=ON_LOOPBACK, trust=trust) as session:
        assert await ask(session, first) == b"yes"
        with pytest.raises(RegistryUnavailable, match="a certificate that is not trusted"):
            await ask(session, second)
        first.open.clear()
        first.visited.clear()
        in_flight = asyncio.create_task(ask(session, first))
        await first.visited.wait()
        new.cert_pem.write_to_path(bundle)
        assert trust.files.reload_if_changed()
        assert await ask(session, second) == b"yes"
        first.open.set()
        assert await in_flight == b"yes"
        with pytest.raises(RegistryUnavailable, match="a certificate that is not trusted"):
            await ask(session, first)


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

    async with Server(authority) as server, await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        trust = RegistryTrust([str(tmp_path / "ca.pem")])
        async with open_session(guard=ON_LOOPBACK, trust=trust) as session:
            assert await ask(session, server) == b"yes"
    assert asked == [server.host]


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "empty"])
async def test_unusable_ca_file_is_the_operators_error(tmp_path: Path, content: str | None) -> None:
    """The message names setting and path."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"registry.ca_files: {path} holds no certificates"):
        RegistryTrust([str(path)])
