"""A real registry (distribution 2.8.2): real images pushed over HTTP and read back, with every kind of access."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path

import bcrypt
import msgspec
import pytest
import trustme
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied
from extender.images.manifest import Image, Kind
from extender.images.reference import parse_reference
from extender.registry.image_description import describe_image
from extender.registry.registry_client import RegistryClient
from testbed.debian_registry import DebianRegistry
from testbed.faulty_registry import GuardedRegistry
from testbed.images import DOCKER, OCI, Family, build_index, build_manifest
from tests.integration.conftest import StartRegistry
from tests.integration.registry.conftest import ANN, MakeClient

MALLORY = Credential("mallory", "guess", CredentialId("mallory"))
BOTH = ["linux/amd64", "linux/arm64"]
FAMILIES = pytest.mark.parametrize("family", [OCI, DOCKER], ids=["oci", "docker"])


SERVICE, ISSUER = "debian", "desk"
_LIFE_SECONDS = 300


class TokenIssuer:
    """Signs tokens for a registry that is configured with `auth` (distribution: docs/spec/auth/jwt.md)."""

    def __init__(self, folder: Path, realm: str) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("desk.example")
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        certificate = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
        self._certificate = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        trusted = str(folder / "authority.pem")
        self.auth = {"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": trusted}}

    def issue(self, repository: str, actions: Sequence[str]) -> str:
        now = int(time.time())
        header = {"typ": "JWT", "alg": "ES256", "x5c": [self._certificate]}
        access = [{"type": "repository", "name": repository, "actions": actions}]
        times = {"exp": now + _LIFE_SECONDS, "nbf": now - 10, "iat": now}
        claims = {"iss": ISSUER, "sub": "", "aud": SERVICE, "jti": "1", "access": access} | times
        signed = b".".join((_pack(msgspec.json.encode(header)), _pack(msgspec.json.encode(claims))))
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b".".join((signed, _pack(r.to_bytes(32) + s.to_bytes(32)))).decode()


class TokenDesk(GuardedRegistry):
    """Issues tokens for another registry: each login may pull one repository."""

    def __init__(self, **pulls: str) -> None:
        """`pulls` maps each login to the repository that it may pull."""
        super().__init__(*pulls)
        self.pulls = pulls
        self.issuer: TokenIssuer | None = None
        self.token_fault = self._issue

    async def _issue(self, request: web.BaseRequest) -> web.StreamResponse | None:
        login = self.desk[-1][1]
        if self.issuer is None or login not in self.pulls:
            return None
        return web.json_response({"token": self.issuer.issue(self.pulls[login], ["pull"]), "expires_in": _LIFE_SECONDS})


def _pack(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


async def look_at(client: RegistryClient, image: str, credential: Credential = ANONYMOUS) -> Image:
    reference = parse_reference(image)
    stated = await client.head_manifest(reference, credential)
    manifest = await client.fetch_manifest(reference, credential)
    assert stated == manifest.digest
    return await describe_image(client, reference, manifest, credential)


def platforms_of(image: Image) -> list[str]:
    return [str(entry.platform) for entry in image.entries]


@FAMILIES
async def test_multi_arch_image(debian_registry: DebianRegistry, make_client: MakeClient, family: Family) -> None:
    digest = debian_registry.push("multi/app", "1", build_index([*BOTH, "linux/arm/v7"], family=family))
    client = make_client(debian_registry.host)
    for name in (":1", f"@{digest}", f":1@{digest}"):
        image = await look_at(client, f"{debian_registry.host}/multi/app{name}")
        assert (image.kind, image.digest, image.media_type) == (Kind.INDEX, digest, family.index)
        assert platforms_of(image) == [*BOTH, "linux/arm/v7"]


@FAMILIES
async def test_single_arch_image(debian_registry: DebianRegistry, make_client: MakeClient, family: Family) -> None:
    digest = debian_registry.push("single/app", "1", build_manifest("linux/s390x", family))
    image = await look_at(make_client(debian_registry.host), f"{debian_registry.host}/single/app:1")
    assert (image.kind, image.digest, image.media_type) == (Kind.MANIFEST, digest, family.manifest)
    assert platforms_of(image) == ["linux/s390x"]


async def test_basic_login(start_debian_registry: StartRegistry, make_client: MakeClient, tmp_path: Path) -> None:
    """With htpasswd only the right password reads, manifests and blobs alike."""
    hashed = bcrypt.hashpw(ANN.password.encode(), bcrypt.gensalt(4)).decode()
    (tmp_path / "htpasswd").write_text(f"{ANN.username}:{hashed}\n")
    registry = start_debian_registry(auth={"htpasswd": {"realm": "debian", "path": str(tmp_path / "htpasswd")}})
    registry.push("team/app", "1", build_manifest("linux/arm64"), login=f"{ANN.username}:{ANN.password}")
    client = make_client(registry.host)
    assert platforms_of(await look_at(client, f"{registry.host}/team/app:1", ANN)) == ["linux/arm64"]
    for credential in (ANONYMOUS, MALLORY):
        with pytest.raises(RegistryDenied):
            await look_at(client, f"{registry.host}/team/app:1", credential)


async def test_bearer_token(start_debian_registry: StartRegistry, make_client: MakeClient, tmp_path: Path) -> None:
    """With a token server, whoever may pull reads; a token for another repository opens nothing."""
    login = f"{ANN.username}:{ANN.password}"
    async with TokenDesk(**{login: "team/app", "": "public/app"}) as desk:
        desk.issuer = TokenIssuer(tmp_path, f"{desk.url}/token")
        registry = start_debian_registry(auth=desk.issuer.auth)
        for repository in ("team/app", "public/app"):
            token = desk.issuer.issue(repository, ["pull", "push"])
            registry.push(repository, "1", build_index(BOTH), token=token)
        client = make_client(registry.host)
        assert platforms_of(await look_at(client, f"{registry.host}/team/app:1", ANN)) == BOTH
        assert platforms_of(await look_at(client, f"{registry.host}/public/app:1")) == BOTH
        assert desk.desk == [
            (f"/token?service=debian&scope=repository:{repository}:pull", shown)
            for repository, shown in (("team/app", login), ("public/app", ""))
        ]
        with pytest.raises(RegistryDenied, match="denies access to team/app"):
            await look_at(client, f"{registry.host}/team/app:1")
        with pytest.raises(RegistryDenied, match="gives no token"):
            await look_at(client, f"{registry.host}/team/app:1", MALLORY)
