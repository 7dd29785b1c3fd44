"""The process that looks inside images: what it finds, what ends it, and that the fetcher beside it notices nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.config.registry_section import RegistryConfig
from extender.fetcher import fetcher_client
from extender.fetcher.child import FetcherChild
from extender.fetcher.fetcher_client import FetcherClient, open_fetcher
from extender.fetcher.messages import Failed, Look, SeenImage, Verified, Verify
from extender.fetcher.settings import FetcherSettings
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.openshift_v1 import NEVER_CONTACT_SOURCE, MirrorObjects, RegistrySources, SourceMirrors
from extender.verifier.verification import Verification
from testbed.debian_registry import DebianRegistry
from testbed.hostile_layers import AMD64_ELF, KINDS, hostile_image
from testbed.images import Bundle, join_index, make_image
from testbed.packed_layers import Layer, Put, gzipped

ARM = "linux/arm64"


@pytest.fixture
async def client(debian_registry: DebianRegistry) -> AsyncIterator[FetcherClient]:
    host = debian_registry.host
    settings = RegistryConfig(timeout_seconds=10.0, plain_http=(host,), allow=("*", host))
    async with open_fetcher(settings) as opened:
        yield opened


def push(registry: DebianRegistry, name: str, layer: Layer) -> ImageReference:
    image: Bundle = join_index([(ARM, make_image(ARM, [layer], Entrypoint=["/app"]))])
    return parse_reference(f"{registry.host}/{name}@{registry.push(name, '1', image)}")


async def look(client: FetcherClient, image: ImageReference, seconds: float = 60.0) -> Verification | Failed:
    answer = await client.verify(
        Verify(tenant="team", reference=image, kubelet_name=image, platform=parse_platform(ARM), seconds=seconds)
    )
    return answer.verification if isinstance(answer, Verified) else answer


async def test_a_lie_is_found_by_a_process_that_then_ends(
    client: FetcherClient, debian_registry: DebianRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = push(debian_registry, "verifier/liar", gzipped([Put("app", AMD64_ELF)]))
    children: list[FetcherChild] = []

    class Kept(FetcherChild):
        def __init__(self, settings: FetcherSettings, name: str) -> None:
            super().__init__(settings, name)
            assert all(child.has_ended for child in children)
            children.append(self)

    monkeypatch.setattr(fetcher_client, "FetcherChild", Kept)
    found = await asyncio.gather(look(client, liar), look(client, liar))
    assert [_facts(each) for each in found] == [("refuted", "/app", "x86-64")] * 2
    assert [child.has_ended for child in children] == [True, True]


async def test_it_asks_where_nodes_pull_from(debian_registry: DebianRegistry) -> None:
    """By OpenShift's objects, which the service was told before the process began."""
    host = debian_registry.host
    liar = push(debian_registry, "verifier/mirrored", gzipped([Put("app", AMD64_ELF)]))
    mirrored = SourceMirrors("quay.io", (f"{host}/verifier",), NEVER_CONTACT_SOURCE)
    objects = MirrorObjects(digest_mirrors=(mirrored,), sources=RegistrySources(insecure_registries=(host,)))
    async with open_fetcher(RegistryConfig(timeout_seconds=10.0, mirrors="openshift", allow=("*", host))) as client:
        client.use_mirrors(objects)
        found = await look(client, parse_reference(f"quay.io/mirrored@{liar.digest}"))
    assert _facts(found) == ("refuted", "/app", "x86-64")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_image_ends_within_its_bounds_and_the_fetcher_answers_meanwhile(
    client: FetcherClient, debian_registry: DebianRegistry, kind: str
) -> None:
    """The process lives, with 200 MB at most, and says why nothing is known."""
    made = await asyncio.to_thread(hostile_image, kind)
    image = parse_reference(
        f"{debian_registry.host}/verifier/hostile@{debian_registry.push('verifier/hostile', '1', made)}"
    )
    looking = asyncio.create_task(look(client, image))
    ask = Look(tenant="team", reference=image, kubelet_name=image, seconds=5.0, known=(image.digest,))
    while not looking.done():
        assert isinstance(await client.look(ask), SeenImage)
        await asyncio.wait([looking], timeout=0.05)
    found = looking.result()
    state, _, why = _facts(found)
    assert (state, KINDS[kind].why in why) == ("claimed", True), found


async def test_a_process_that_dies_denies_nothing(
    client: FetcherClient, debian_registry: DebianRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended it; the next look has another process."""
    liar = push(debian_registry, "verifier/dies", gzipped([Put("app", AMD64_ELF)]))
    monkeypatch.setattr(fetcher_client, "VERIFIER_RESIDENT_BYTES", 1 << 20)
    assert _facts(await look(client, liar))[0] == "unavailable"
    monkeypatch.undo()
    assert _facts(await look(client, liar))[0] == "refuted"


def _facts(found: Verification | Failed) -> tuple[str, str, str]:
    if isinstance(found, Failed):
        return found.failure.cause, "", found.why
    return found.state, found.program, found.detail
