"""TLS as a client meets it: the files' certificate, renewed in place, and client certificates where asked for."""

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import trustme

from extender.errors import ConfigError
from extender.metrics import REGISTRY
from extender.server.http import Listener, open_listener
from extender.server.routes import PostRoutes, Reply, Route
from extender.server.tls import TlsFiles


class Files:
    """Certificate files in a folder, and who signed them."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.client_ca = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))

    def write_leaf(self, authority: trustme.CA, not_after: datetime | None = None) -> None:
        leaf = authority.issue_cert("localhost", "127.0.0.1", not_after=not_after)
        leaf.private_key_pem.write_to_path(self.key)
        leaf.cert_chain_pems[0].write_to_path(self.certificate)

    def open(self, *, client_ca: bool) -> TlsFiles:
        return TlsFiles("admission", str(self.certificate), str(self.key), str(self.client_ca) if client_ca else "")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server() -> trustme.CA:
    return trustme.CA()


async def ok(_body: bytes) -> Reply:
    return Reply(b"{}")


async def serve(tls: TlsFiles) -> Listener:
    service = PostRoutes({"/": Route("admission", ok, lambda _body, _id: b"")}, draining=bool)
    return open_listener("admission", service, "127.0.0.1", 0, tls.context)


def client(trusted: trustme.CA, own: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if own:
        own.issue_cert("scheduler").configure_cert(context)
    return context


async def status(listener: Listener, context: ssl.SSLContext, host: str = "127.0.0.1") -> int:
    url = f"https://{host}:{listener.address.rpartition(':')[2]}/"
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session, session.post(url) as response:
        return response.status


@pytest.fixture
async def opened() -> AsyncIterator[list[Listener]]:
    listeners: list[Listener] = []
    yield listeners
    for listener in listeners:
        await listener.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_new_files_serve_new_connections(
    files: Files, server: trustme.CA, opened: list[Listener], host: str
) -> None:
    """After the files change, new handshakes get the new leaf; with and without a server name in the handshake."""
    files.write_leaf(server)
    tls = files.open(client_ca=False)
    opened.append(await serve(tls))
    assert await status(opened[0], client(server), host) == 200
    assert not tls.files.reload_if_changed()
    other = trustme.CA()
    files.write_leaf(other)
    assert tls.files.reload_if_changed()
    assert await status(opened[0], client(other), host) == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await status(opened[0], client(server), host)


async def test_half_written_files_keep_the_old_leaf(files: Files, server: trustme.CA, opened: list[Listener]) -> None:
    """A key that does not fit the certificate is refused; a metric tells when the certificate in use ends."""

    def ends() -> datetime:
        value = REGISTRY.get_sample_value("multiarch_certificate_expiry_timestamp_seconds", {"listener": "admission"})
        assert value is not None
        return datetime.fromtimestamp(value, UTC)

    first, second = datetime(2031, 1, 1, tzinfo=UTC), datetime(2032, 1, 1, tzinfo=UTC)
    files.write_leaf(server, not_after=first)
    tls = files.open(client_ca=False)
    opened.append(await serve(tls))
    assert ends() == first
    old = files.key.read_bytes()
    files.write_leaf(server, not_after=second)
    new = files.key.read_bytes()
    files.key.write_bytes(old)
    assert not tls.files.reload_if_changed()
    assert ends() == first
    assert await status(opened[0], client(server)) == 200
    files.key.write_bytes(new)
    assert tls.files.reload_if_changed()
    assert ends() == second
    assert await status(opened[0], client(server)) == 200


async def test_client_authority_is_asked_for_and_can_be_replaced(
    files: Files, server: trustme.CA, opened: list[Listener]
) -> None:
    """Only clients of the present authority come in: none without a certificate, none of an authority taken away."""
    files.write_leaf(server)
    first, second = trustme.CA(), trustme.CA()
    first.cert_pem.write_to_path(files.client_ca)
    tls = files.open(client_ca=True)
    opened.append(await serve(tls))
    kept = client(server, first)
    assert await status(opened[0], kept) == 200
    with pytest.raises(aiohttp.ClientError):
        await status(opened[0], client(server))
    second.cert_pem.write_to_path(files.client_ca)
    assert tls.files.reload_if_changed()
    assert await status(opened[0], client(server, second)) == 200
    with pytest.raises(aiohttp.ClientError):
        await status(opened[0], kept)


@pytest.mark.parametrize("broken", ["certificate", "key"])
def test_files_that_cannot_be_used_are_named(files: Files, server: trustme.CA, broken: str) -> None:
    """A missing or malformed file is a configuration error that names it."""
    files.write_leaf(server)
    path: Path = getattr(files, broken)
    path.write_text("no PEM")
    with pytest.raises(ConfigError, match=path.name):
        files.open(client_ca=False)
    path.unlink()
    with pytest.raises(ConfigError, match=path.name):
        files.open(client_ca=False)
