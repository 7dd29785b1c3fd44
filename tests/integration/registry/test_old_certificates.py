"""Registries, mirrors and caches whose certificates only lenient clients take, as the clients on nodes are."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from yarl import URL

from extender.images.reference import parse_reference
from extender.registry.http import open_session, send
from extender.registry.mirror_files import MirrorFiles
from tests.integration.registry.conftest import ON_LOOPBACK
from tests.integration.registry.old_certificates import OLD, OldCertificates


@pytest.fixture(autouse=True)
def as_in_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts begin as those of Python 3.13 do, by which the service runs."""
    usual = ssl.create_default_context

    def strict(*arguments: object, **named: object) -> ssl.SSLContext:
        context = usual(*arguments, **named)  # type: ignore[arg-type]  # passed on as they are
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.parametrize("make", OLD.values(), ids=OLD)
async def test_certificates_that_nodes_take_are_taken(tmp_path: Path, make: Callable[[], OldCertificates]) -> None:
    """By a context that a host of its own authority has."""
    made, folder = make(), tmp_path / "certs.d" / "quay.io"
    folder.mkdir(parents=True)
    (folder / "ca.pem").write_text(made.authority)
    (folder / "server.pem").write_text(made.server)
    (folder / "hosts.toml").write_text('[host."https://127.0.0.1"]\nca = "ca.pem"\n')
    mirror, _ = MirrorFiles(str(folder.parent)).endpoints_for(parse_reference("quay.io/x:1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes")
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server,
        open_session(guard=ON_LOOPBACK) as session,
    ):
        url = URL(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        found = await send(session, "GET", url, headers={}, limit_bytes=100, tls=mirror.tls_for(mirror.root))
    assert found.body == b"yes"
