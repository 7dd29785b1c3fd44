"""Registries, mirrors and caches whose certificates only lenient clients take, as the clients on nodes are."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from yarl import URL

from extender.images.reference import parse_reference
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session, send
from extender.registry.mirror_files import MirrorFiles
from tests.integration.registry.conftest import ON_LOOPBACK
from tests.integration.registry.old_certificates import OLD, OldCertificates

TrustOf = Callable[[Path], ssl.SSLContext | bool]


@pytest.fixture(autouse=True)
def as_in_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts begin as those of Python 3.13 do, by which the service runs."""
    usual = ssl.create_default_context

    def strict(*arguments: object, **named: object) -> ssl.SSLContext:
        context = usual(*arguments, **named)  # type: ignore[arg-type]  # passed on as they are
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def by_setting(file: Path) -> ssl.SSLContext:
    return RegistryTrust([str(file)]).context


def by_hosts_file(file: Path) -> ssl.SSLContext | bool:
    folder = file.parent / "certs.d" / "quay.io"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text(f'[host."https://127.0.0.1"]\nca = "{file}"\n')
    mirror, _ = MirrorFiles(str(folder.parent)).endpoints_for(parse_reference("quay.io/x:1"))
    return mirror.tls_for(mirror.root)


@pytest.fixture(params=OLD)
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> OldCertificates:
    made = OLD[request.param]()
    (tmp_path / "ca.pem").write_text(made.authority)
    (tmp_path / "server.pem").write_text(made.server)
    return made


@pytest.fixture
async def url(certificates: OldCertificates, tmp_path: Path) -> AsyncIterator[URL]:
    assert certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield URL(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


@pytest.mark.parametrize("trust_of", [by_setting, by_hosts_file])
async def test_certificates_that_nodes_take_are_taken(url: URL, tmp_path: Path, trust_of: TrustOf) -> None:
    """Whoever names the authority."""
    context = trust_of(tmp_path / "ca.pem")
    async with open_session(guard=ON_LOOPBACK) as session:
        answer = await send(session, "GET", url, headers={}, limit_bytes=100, tls=context)
    assert answer.body == b"yes"
