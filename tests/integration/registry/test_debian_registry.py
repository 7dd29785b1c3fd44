"""A real registry (distribution 2.8.2): real images pushed over HTTP and read back, with every kind of access."""

from pathlib import Path

import bcrypt
import pytest

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied
from extender.images.manifest import Image, Kind
from extender.images.reference import parse_reference
from extender.registry.image_description import describe_image
from extender.registry.registry_client import RegistryClient
from testbed.debian_registry import DebianRegistry
from testbed.images import DOCKER, OCI, Family, build_index, build_manifest
from tests.integration.conftest import StartRegistry
from tests.integration.registry.conftest import MakeClient
from tests.integration.registry.token_issuer import TokenDesk, TokenIssuer

ANN = Credential("ann", "pa:ss", CredentialId("ann"))
MALLORY = Credential("mallory", "guess", CredentialId("mallory"))
BOTH = ["linux/amd64", "linux/arm64"]
FAMILIES = pytest.mark.parametrize("family", [OCI, DOCKER], ids=["oci", "docker"])


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
    """An index, by tag and by digest."""
    digest = debian_registry.push("multi/app", "1", build_index([*BOTH, "linux/arm/v7"], family=family))
    client = make_client(debian_registry.host)
    for name in (":1", f"@{digest}", f":1@{digest}"):
        image = await look_at(client, f"{debian_registry.host}/multi/app{name}")
        assert (image.kind, image.digest, image.media_type) == (Kind.INDEX, digest, family.index)
        assert platforms_of(image) == [*BOTH, "linux/arm/v7"]


@FAMILIES
async def test_single_arch_image(debian_registry: DebianRegistry, make_client: MakeClient, family: Family) -> None:
    """A manifest whose platform is in its config blob."""
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
