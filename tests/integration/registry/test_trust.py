"""Whose certificates are taken where: bundles that change, and certificates of old tools."""

import asyncio
import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from yarl import URL

from extender.errors import ConfigError, RegistryUnavailable
from extender.images.reference import parse_reference
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session, send
from extender.registry.mirror_files import MirrorFiles
from testbed.faulty_registry import FaultyRegistry
from tests.integration.registry.conftest import ON_LOOPBACK, talking


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
    return (await send(session, "GET", URL(server.url), headers={}, limit_bytes=100, seconds=60)).body


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
        there = await asyncio.open_connection("127.0.0.1", asked[-1].partition(":")[2])
        writer.write(b"HTTP/1.1 200 Connection established\r\nProxy-agent: here\r\n\r\n")
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    async with Server(authority) as server, await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        trust = RegistryTrust([str(tmp_path / "ca.pem")])
        host = f"registry.example:{server.host.partition(':')[2]}"
        async with open_session(guard=ON_LOOPBACK, trust=trust) as session:
            response = await send(session, "GET", URL(f"https://{host}"), headers={}, limit_bytes=100, seconds=60)
    assert (response.body, asked) == (b"yes", [host])


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "empty"])
async def test_unusable_ca_file_is_the_operators_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"registry.ca_files: {path} holds no certificates"):
        RegistryTrust([str(path)])


_BEGIN, _END = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name)).issuer_name(_subject(issuer)).public_key(key)
        .serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
    )  # fmt: skip


def _issue(unusual: str) -> tuple[bytes, bytes]:
    """Returns an authority's certificate, and a server's with its key, as PEM, which have this oddity."""
    key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    is_alone = unusual == "intermediate alone"
    issuer, signer = ("one above it", ec.generate_private_key(ec.SECP256R1())) if is_alone else ("old authority", key)
    authority = _builder("old authority", issuer, key.public_key())
    is_critical = unusual != "constraints not critical"
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=is_critical)
    if unusual != "no key usage":
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        authority = authority.add_extension(usage, critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    server = _builder("old server", "old authority", own.public_key()).add_extension(names, critical=False)
    if unusual != "no key identifiers":
        authority = authority.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        named = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        server = server.add_extension(named, critical=False)
    text = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    text += server.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return authority.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM), text


@pytest.fixture
def as_in_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts begin as those of Python 3.13 do, by which the service runs."""
    usual = ssl.create_default_context

    def strict(*arguments: object, **named: object) -> ssl.SSLContext:
        context = usual(*arguments, **named)  # type: ignore[arg-type]  # passed on as they are
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("as_in_the_image")
@pytest.mark.parametrize(
    "unusual", ["no key identifiers", "constraints not critical", "no key usage", "intermediate alone"]
)
async def test_certificates_that_nodes_take_are_taken(tmp_path: Path, unusual: str) -> None:
    (authority, server), folder = _issue(unusual), tmp_path / "certs.d" / "quay.io"
    folder.mkdir(parents=True)
    (folder / "ca.pem").write_bytes(authority)
    (folder / "server.pem").write_bytes(server)
    (folder / "hosts.toml").write_text('[host."https://127.0.0.1"]\nca = "ca.pem"\n')
    mirror, _ = MirrorFiles(str(folder.parent)).endpoints_for(parse_reference("quay.io/x:1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes")

    tls = mirror.tls_for(mirror.root)
    async with talking(answer, context) as host, open_session(guard=ON_LOOPBACK) as session:
        found = await send(session, "GET", URL(f"https://{host}/"), headers={}, limit_bytes=100, seconds=60, tls=tls)
    assert found.body == b"yes"
