"""TLS as a client meets it: the files' certificate, renewed in place, and client certificates where asked for."""

import asyncio
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
from testbed.machines import running_machine
from tests.integration.server.raw_http import port_of


async def ok(_body: bytes) -> Reply:
    return Reply(b"{}")


class Served:
    """Certificate files in a folder, who signed them, and a listener that has them."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.client_ca = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self.authority = trustme.CA()
        self.tls: TlsFiles
        self.listener: Listener | None = None

    def write_leaf(self, authority: trustme.CA | None = None, not_after: datetime | None = None) -> None:
        leaf = (authority or self.authority).issue_cert("localhost", "127.0.0.1", not_after=not_after)
        leaf.private_key_pem.write_to_path(self.key)
        leaf.cert_chain_pems[0].write_to_path(self.certificate)

    def open(self, *, client_ca: bool = False) -> None:
        self.tls = TlsFiles("admission", str(self.certificate), str(self.key), str(self.client_ca) if client_ca else "")
        service = PostRoutes({"/": Route("admission", ok, lambda _body, _id: b"")}, draining=bool, token_bytes=bytes)
        self.listener = open_listener(
            "admission", service, "127.0.0.1", 0, self.tls.context, bind=running_machine().bind
        )

    async def status(
        self, host: str = "127.0.0.1", *, trusts: trustme.CA | None = None, shows: trustme.CA | None = None
    ) -> int:
        """The status of an answer to a client of its own, which may show a certificate."""
        assert self.listener
        context = ssl.create_default_context()
        (trusts or self.authority).configure_trust(context)
        if shows:
            shows.issue_cert("scheduler").configure_cert(context)
        url, connector = f"https://{host}:{port_of(self.listener)}/", aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session, session.post(url) as response:
            return response.status


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    made.write_leaf()
    yield made
    if made.listener:
        await made.listener.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_new_files_serve_new_connections(served: Served, host: str) -> None:
    """After the files change, new handshakes get the new leaf; with and without a server name in the handshake."""
    served.open()
    assert await served.status(host) == 200
    assert not served.tls.files.reload_if_changed()
    other = trustme.CA()
    served.write_leaf(other)
    assert served.tls.files.reload_if_changed()
    assert await served.status(host, trusts=other) == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await served.status(host)


async def test_half_written_files_keep_the_old_leaf(served: Served) -> None:
    """A key that does not fit the certificate is refused; a metric tells when the certificate in use ends."""

    def ends() -> datetime:
        value = REGISTRY.get_sample_value("multiarch_certificate_expiry_timestamp_seconds", {"listener": "admission"})
        assert value is not None
        return datetime.fromtimestamp(value, UTC)

    first, second = datetime(2031, 1, 1, tzinfo=UTC), datetime(2032, 1, 1, tzinfo=UTC)
    served.write_leaf(not_after=first)
    served.open()
    old = served.key.read_bytes()
    served.write_leaf(not_after=second)
    for key, is_new, until in ((old, False, first), (served.key.read_bytes(), True, second)):
        served.key.write_bytes(key)
        assert served.tls.files.reload_if_changed() is is_new
        assert (ends(), await served.status()) == (until, 200)


async def test_client_authority_is_asked_for_and_can_be_replaced(served: Served) -> None:
    """Only clients of the present authority come in: none without a certificate, none of an authority taken away."""
    first, second = trustme.CA(), trustme.CA()
    first.cert_pem.write_to_path(served.client_ca)
    served.open(client_ca=True)
    assert await served.status(shows=first) == 200
    with pytest.raises(aiohttp.ClientError):
        await served.status()
    second.cert_pem.write_to_path(served.client_ca)
    assert served.tls.files.reload_if_changed()
    assert await served.status(shows=second) == 200
    with pytest.raises(aiohttp.ClientError):
        await served.status(shows=first)


@pytest.mark.parametrize("broken", ["certificate", "key"])
async def test_files_that_cannot_be_used_are_named(served: Served, broken: str) -> None:
    """A missing or malformed file is a configuration error that names it."""
    path: Path = getattr(served, broken)
    path.write_text("no PEM")
    with pytest.raises(ConfigError, match=path.name):
        served.open()
    path.unlink()
    with pytest.raises(ConfigError, match=path.name):
        served.open()


async def test_a_client_that_would_take_http_2_is_answered_by_the_version_that_is_spoken(served: Served) -> None:
    """An API server offers both, and goes by what the handshake chose."""
    served.open()
    assert served.listener
    context = ssl.create_default_context()
    served.authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(served.listener), ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.close()
    await writer.wait_closed()
