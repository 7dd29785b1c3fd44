"""Registries behind mirrors, over real HTTP and TLS: what each is asked, shown, and trusted with."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import trustme
from aiohttp import web
from yarl import URL

from extender import errors
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.credentials.operator_keyring import OperatorKeyring
from extender.fetcher.looker import Looker
from extender.fetcher.messages import Look, SeenImage
from extender.images.reference import ImageReference, parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.endpoint import Endpoint
from extender.registry.image_description import RegistryImages, describe_image
from extender.registry.mirror_files import MirrorFiles
from extender.registry.registry_client import RegistryClient
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from testbed.faulty_registry import Fault, FaultyRegistry, GuardedRegistry
from testbed.images import build_manifest
from tests.integration.conftest import StartRegistry
from tests.integration.registry.conftest import ANN, INDEX, MakeClient, app_at, deaf_host, redirects_to, stall

BOTH = ["linux/amd64", "linux/arm64"]
OPERATOR = Credential("operator", "word", CredentialId("operator"))
MakeMirrored = Callable[..., RegistryImages]


class Watched(FaultyRegistry):
    """A registry that keeps the paths it was asked for, with their queries."""

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self.paths: list[str] = []
        self.dialects: list[list[str]] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path_qs}")
        self.dialects.append(request.headers.getall("X-Dialect", []))
        return await super().answer(request)


@pytest.fixture
def make_mirrored(session: aiohttp.ClientSession, clock: Clock, tmp_path: Path) -> MakeMirrored:
    def make(
        domain: str,
        hosts: str,
        *,
        ca_files: Sequence[str] = (),
        logins: tuple[Credential, ...] = (ANONYMOUS,),
        timeout_seconds: float = 10.0,
    ) -> RegistryImages:
        folder = tmp_path / "hosts" / domain
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(hosts)

        async def operators(reference: ImageReference) -> tuple[Credential, ...]:
            return logins

        return RegistryImages(
            session,
            timeout_seconds=timeout_seconds,
            plain_http=frozenset((domain,)),
            mirrors=MirrorFiles(str(tmp_path / "hosts"), ca_files=ca_files),
            mirror_credentials=operators,
            machine=THIS_MACHINE._replace(clock=clock, wall_clock=clock, random=float),
        )

    return make


async def platforms_of(
    client: RegistryClient, image: str | ImageReference, credential: Credential = ANONYMOUS
) -> list[str]:
    """What an image runs on, after a HEAD that must agree with the GET."""
    reference = parse_reference(str(image))
    stated = await client.head_manifest(reference, credential)
    manifest = await client.fetch_manifest(reference, credential)
    assert stated == manifest.digest
    described = await describe_image(client, reference, manifest, credential)
    return [str(entry.platform) for entry in described.entries]


async def test_pull_through_cache(start_debian_registry: StartRegistry, make_mirrored: MakeMirrored) -> None:
    """A real cache (distribution, proxy.remoteurl) gives indexes, manifests and configs by tag and by digest.

    When its registry is dead it gives what it holds; what it lacks is unknown.
    """
    upstream = start_debian_registry()
    multi, lacked = upstream.push("cached/multi", "1", INDEX), upstream.push("other/app", "1", INDEX)
    upstream.push("cached/single", "1", build_manifest("linux/s390x"))
    cache = start_debian_registry(proxy={"remoteurl": upstream.url})
    # The registry itself is at no address, so whatever is known came by the mirror.
    client = make_mirrored("upstream.invalid", f'[host."{cache.url}"]\n')
    held = f"upstream.invalid/cached/multi@{multi}"
    assert await platforms_of(client, "upstream.invalid/cached/multi:1") == BOTH
    assert await platforms_of(client, held) == BOTH
    assert await platforms_of(client, "upstream.invalid/cached/single:1") == ["linux/s390x"]
    upstream.__exit__(None, None, None)
    assert await platforms_of(client, held) == BOTH
    for _ in range(2):
        with pytest.raises(errors.RegistryUnavailable):
            await platforms_of(client, f"upstream.invalid/other/app@{lacked}")
    assert await platforms_of(client, held) == BOTH


async def test_mirrors_are_asked_in_the_order_of_the_file(make_mirrored: MakeMirrored) -> None:
    """Each is told whose images it is asked for, but the registry is not."""
    async with Watched() as first, Watched() as second, Watched() as upstream:
        digest = upstream.add("team/app", "1", INDEX)
        client = make_mirrored(upstream.host, f'[host."{second.url}"]\n[host."{first.url}"]\n')
        reference = parse_reference(f"{upstream.host}/team/app:1")
        assert await client.head_manifest(reference, ANONYMOUS) == digest
        line = "HEAD /v2/team/app/manifests/1"
        assert (second.paths, first.paths) == ([f"{line}?ns={upstream.host}"],) * 2
        assert upstream.paths == [line]
        second.add("team/app", "1", INDEX)
        assert await client.head_manifest(reference, ANONYMOUS) == digest
        assert (len(second.paths), len(first.paths), len(upstream.paths)) == (2, 1, 1)


async def test_a_mirror_for_digests_alone_spares_the_registry_a_get(make_mirrored: MakeMirrored) -> None:
    """As nodes do, which have the registry say what a tag means; a mirror that knows tags takes one GET."""
    async with Watched() as mirror, Watched() as upstream:
        image = app_at(upstream)
        digest = mirror.add("team/app", "1", INDEX)
        for capabilities, at_registry, at_mirror in (
            ('["pull"]', ["HEAD /v2/team/app/manifests/1"], f"GET /v2/team/app/manifests/{digest}"),
            ('["pull", "resolve"]', [], "GET /v2/team/app/manifests/1"),
        ):
            client = make_mirrored(upstream.host, f'[host."{mirror.url}"]\ncapabilities = {capabilities}\n')
            looker = Looker(client, OperatorKeyring(token_bytes=bytes))
            seen = await looker.look(Look(tenant="shop", reference=image, kubelet_name=image, seconds=20))
            assert isinstance(seen, SeenImage)
            assert (seen.digest, upstream.paths) == (digest, at_registry)
            assert mirror.paths == [f"{at_mirror}?ns={upstream.host}"]
            upstream.paths.clear()
            mirror.paths.clear()


async def test_mirror_that_drops_packets_costs_its_dial_timeout(
    make_mirrored: MakeMirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.registry.http._CONNECT_SECONDS", 1000)
    async with EmbeddedRegistry() as upstream:
        upstream.add("team/app", "1", INDEX)
        with deaf_host() as mirror:
            hosts = f'[host."http://{mirror}"]\ndial_timeout = "50ms"\n'
            client = make_mirrored(upstream.host, hosts, timeout_seconds=1000)
            assert (await client.fetch_manifest(app_at(upstream), ANONYMOUS)).digest == INDEX.digest


async def test_stalling_mirror_costs_its_own_time_out(make_mirrored: MakeMirrored) -> None:
    """The registry's time begins when the mirror's is over."""
    async with Watched(stall) as mirror, EmbeddedRegistry() as upstream:
        client = make_mirrored(upstream.host, f'[host."{mirror.url}"]\n', timeout_seconds=0.3)
        assert await platforms_of(client, app_at(upstream)) == BOTH
        assert len(mirror.paths) == 1


async def test_prefix_rewriting(make_mirrored: MakeMirrored) -> None:
    """A cache with a project per registry, as Harbor's, by override_path: name, token scope and blobs follow."""
    async with GuardedRegistry("") as harbor, EmbeddedRegistry() as upstream:
        harbor.challenges = ['Bearer realm="{url}/token",service="harbor"']  # no scope: ours to say
        harbor.add("hub-proxy/library/app", "1", build_manifest("linux/arm64"))
        client = make_mirrored(upstream.host, f'[host."{harbor.url}/v2/hub-proxy"]\noverride_path = true\n')
        assert await platforms_of(client, f"{upstream.host}/library/app:1") == ["linux/arm64"]
        assert [path for path, _ in harbor.desk] == [
            "/token?service=harbor&scope=repository:hub-proxy/library/app:pull"
        ]
        assert not upstream.requests


async def test_credentials_go_to_their_own_origins(make_mirrored: MakeMirrored) -> None:
    """The registry sees the image's login alone; the mirror, as of containerd, this one and then the operator's."""
    tenant, operator = "ann:pa:ss", "operator:word"
    async with GuardedRegistry(operator) as mirror, GuardedRegistry(tenant) as upstream:
        client = make_mirrored(upstream.host, f'[host."{mirror.url}"]\n', logins=(OPERATOR, ANONYMOUS))
        assert await platforms_of(client, app_at(upstream), ANN) == BOTH
        assert [login for _, login in mirror.desk][:2] == [tenant, operator]
        assert {login for _, login in upstream.desk} == {tenant}


async def test_headers_are_for_the_host_alone(make_mirrored: MakeMirrored) -> None:
    """Those of a mirror reach neither its redirect's target nor the registry; a login beats a stated Authorization."""
    async with Watched() as storage, Watched() as mirror, Watched() as upstream:
        storage.add("team/app", "1", INDEX)
        mirror.fault = redirects_to(storage.url)
        header = 'Authorization = "Basic c2V0"\nX-Dialect = ["a", "b"]\n'
        hosts = f'[host."{mirror.url}"]\n[host."{mirror.url}".header]\n{header}'
        client = make_mirrored(upstream.host, hosts)
        assert await platforms_of(client, f"{upstream.host}/team/app:1") == BOTH
        assert set(map(tuple, mirror.dialects)) == {("a", "b")}
        assert set(map(tuple, storage.dialects)) == {()}
        assert (set(mirror.shown), set(storage.shown)) == ({"Basic c2V0"}, {""})


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made


async def test_authority_of_one_registry(make_mirrored: MakeMirrored, authority: trustme.CA, tmp_path: Path) -> None:
    async with FaultyRegistry(authority=authority) as registry, FaultyRegistry(authority=authority) as other:
        client = make_mirrored(registry.host, f'server = "{registry.url}"\nca = "{tmp_path}/ca.pem"\n')
        assert await platforms_of(client, app_at(registry)) == BOTH
        client = make_mirrored(other.host, f'server = "{other.url}"\n')
        with pytest.raises(errors.RegistryUnavailable, match="certificate that is not trusted"):
            await platforms_of(client, app_at(other))


async def test_several_bundles(make_mirrored: MakeMirrored, authority: trustme.CA, tmp_path: Path) -> None:
    """Those of all registries and the registry's own are trusted together."""
    general = trustme.CA()
    general.cert_pem.write_to_path(str(tmp_path / "general.pem"))
    for issuer in (general, authority):
        async with FaultyRegistry(authority=issuer) as registry:
            hosts = f'server = "{registry.url}"\nca = "{tmp_path}/ca.pem"\n'
            client = make_mirrored(registry.host, hosts, ca_files=[str(tmp_path / "general.pem")])
            assert await platforms_of(client, app_at(registry)) == BOTH


async def test_client_certificate(make_mirrored: MakeMirrored, authority: trustme.CA, tmp_path: Path) -> None:
    """A registry that wants one sees it; without, there is no connection."""
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    async with FaultyRegistry(authority=authority, clients=authority) as registry:
        trusted = f'server = "{registry.url}"\nca = "{tmp_path}/ca.pem"\n'
        client = make_mirrored(registry.host, trusted)
        with pytest.raises(errors.RegistryUnavailable):
            await platforms_of(client, app_at(registry))
        client = make_mirrored(
            registry.host, trusted + f'client = [["{tmp_path}/client.pem", "{tmp_path}/client.pem"]]\n'
        )
        assert await platforms_of(client, app_at(registry)) == BOTH


async def test_token_server_of_a_private_authority(
    make_mirrored: MakeMirrored, authority: trustme.CA, tmp_path: Path
) -> None:
    """The registry's authority vouches for its token server, which is often the same machine."""
    async with GuardedRegistry("", authority=authority) as registry:
        client = make_mirrored(registry.host, f'server = "{registry.url}"\nca = "{tmp_path}/ca.pem"\n')
        assert await platforms_of(client, app_at(registry)) == BOTH
        assert len(registry.desk) == 1


async def test_skip_verify(make_mirrored: MakeMirrored, authority: trustme.CA) -> None:
    """The operator's word is enough for the host itself, not for where it redirects to."""
    async with FaultyRegistry(authority=authority) as registry, FaultyRegistry(authority=authority) as storage:
        client = make_mirrored(registry.host, f'server = "{registry.url}"\nskip_verify = true\n')
        assert await platforms_of(client, app_at(registry)) == BOTH
        registry.fault = redirects_to(storage.url)
        with pytest.raises(errors.RegistryUnavailable, match="certificate that is not trusted"):
            await platforms_of(client, app_at(registry))


class Metered(Watched):
    """Docker Hub as far as it counts: `left` of 100 pulls, one less with each GET of a manifest."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and "/manifests/" in request.path:
            self.left -= 1
        response = await super().answer(request)
        if response.status == 404 or self.left > 500:
            return response
        response.headers["RateLimit-Limit"] = "100;w=21600"
        response.headers["RateLimit-Remaining"] = f"{self.left};w=21600"
        return response


async def test_silence_on_what_is_missing_is_no_word_on_the_quota(make_client: MakeClient) -> None:
    async with Metered(5) as hub:
        client = make_client(hub.host)
        name = parse_reference(f"{hub.host}/team/app@{hub.add('team/app', '1', INDEX)}")
        await client.head_manifest(name, ANONYMOUS)
        with pytest.raises(errors.ManifestNotFound):
            await client.head_manifest(parse_reference(f"{hub.host}/team/app:typo"), ANONYMOUS)
        with pytest.raises(errors.RegistryThrottled):
            await client.fetch_manifest(name, ANONYMOUS)
        assert hub.left == 5


class AtHub(NamedTuple):
    """Docker Hub's endpoint, wherever that is."""

    url: str

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        root = URL(f"{self.url}/v2")
        return (Endpoint(name=reference.domain, root=root, repository=reference.path),)


@pytest.mark.parametrize("left", [10, 11, 1000])
async def test_what_docker_hub_leaves_to_nodes_is_left_to_them_from_the_start(
    session: aiohttp.ClientSession, clock: Clock, left: int
) -> None:
    """A HEAD says how much is left, if nothing has said so for a minute; of other registries there is none to keep.

    A thousand stand for no limit.
    """
    async with Metered(left) as hub:
        client = RegistryClient(
            session,
            timeout_seconds=10,
            plain_http=frozenset(),
            mirrors=AtHub(hub.url),
            machine=THIS_MACHINE._replace(clock=clock),
        )
        for number in range(3):
            hub.add("team/app", f"{number}", INDEX)
            hub.paths.clear()
            image = parse_reference(f"docker.io/team/app:{number}")
            if left == 10:
                with pytest.raises(errors.QuotaReserved):
                    await client.fetch_manifest(image, ANONYMOUS)
            else:
                hub.left = 50 if left == 11 else left
                await client.fetch_manifest(image, ANONYMOUS)
            methods = [path.partition(" ")[0] for path in hub.paths]
            assert methods == ([] if number == 1 else ["HEAD"]) + ["GET"] * (left > 10)
            clock.advance(60 * number)
        elsewhere = parse_reference(f"{hub.host}/team/app:1")
        hub.paths.clear()
        await client.fetch_manifest(elsewhere, ANN)
        assert [path.partition(" ")[0] for path in hub.paths] == ["GET"]


async def test_old_word_on_the_quota_is_renewed_for_free(make_client: MakeClient, clock: Clock) -> None:
    """After a minute a HEAD tells, so that images named by digest are not kept waiting for the window's end."""
    async with Metered(1) as hub:
        client = make_client(hub.host)
        digest = hub.add("team/app", "1", INDEX)
        name = parse_reference(f"{hub.host}/team/app@{digest}")
        await client.fetch_manifest(name, ANONYMOUS)
        hub.left = 100
        with pytest.raises(errors.RegistryThrottled):
            await client.fetch_manifest(name, ANONYMOUS)
        clock.advance(60)
        assert (await client.fetch_manifest(name, ANONYMOUS)).digest == digest
        assert [path.partition(" ")[0] for path in hub.paths] == ["GET", "HEAD", "GET"]
