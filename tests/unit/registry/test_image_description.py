"""What an image is found to be, in how few requests, and where looking ends."""

import asyncio
import base64
import json
from collections import Counter
from typing import Any

import pytest

from extender import errors
from extender.credentials.keyring import ANONYMOUS, Credential
from extender.images.manifest import OCI_INDEX, Image, Kind
from extender.images.reference import ImageReference, digest_of, parse_reference
from extender.registry.image_description import LISTED_SKIPPED, MAX_DEPTH, MAX_PLATFORMS, MAX_REQUESTS, describe_image
from extender.registry.registry_client import FetchedManifest, RegistryClient
from testbed.images import DOCKER, OCI, Bundle, Manifest, build_artifact, build_index, build_manifest
from testbed.memory_network import run_in_memory
from tests.unit.retained import retained_bytes

APP = parse_reference("registry.example.com/team/app:1")


class MemoryRegistry(RegistryClient):
    """The manifests and blobs of some images, and how often they were asked for."""

    def __init__(self, *bundles: Bundle, error: Exception | None = None) -> None:
        """`error` is that of what it lacks."""
        self.manifests = {manifest.digest: manifest for bundle in bundles for manifest in bundle.manifests}
        self.blobs = {digest_of(blob): blob for bundle in bundles for blob in bundle.blobs}
        self.error = error or errors.ManifestNotFound("no such thing")
        self.requests: Counter[str] = Counter()

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        assert (reference.repository, reference.tag, credential) == (APP.repository, APP.tag, ANONYMOUS)
        self.requests["manifests"] += 1
        if reference.digest not in self.manifests:
            raise self.error
        return fetched(self.manifests[reference.digest])

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        assert (reference.repository, credential) == (APP.repository, ANONYMOUS)
        self.requests["blobs"] += 1
        if digest not in self.blobs:
            raise self.error
        return self.blobs[digest]


def fetched(manifest: Manifest) -> FetchedManifest:
    return FetchedManifest(manifest.digest, manifest.media_type, manifest.body)


def index_of(*children: Manifest, **entry: Any) -> Manifest:
    """An OCI index whose entries say no more than they must, and what `entry` adds to each."""
    entries = [
        {"mediaType": child.media_type, "digest": child.digest, "size": len(child.body)} | entry for child in children
    ]
    return Manifest(OCI_INDEX, json.dumps({"schemaVersion": 2, "manifests": entries}).encode())


async def describe(registry: RegistryClient, manifest: Manifest) -> Image:
    return await describe_image(registry, APP, fetched(manifest), ANONYMOUS)


def platforms_of(image: Image) -> list[str]:
    return [str(entry.platform) for entry in image.entries]


BOTH = ["linux/amd64", "linux/arm64"]
INDEX, INNER, CHART = build_index(BOTH, attested=True), build_index(BOTH), build_artifact()
SINGLE, CHILDREN = build_manifest("linux/arm/v6", DOCKER), (build_manifest(BOTH[0]), build_manifest("windows/amd64"))
LEVEL = build_manifest("linux/amd64/v3")
IMAGES: dict[str, tuple[tuple[Bundle, ...], Manifest, Kind, list[str], bool, dict[str, int], list[str]]] = {
    "index": ((INDEX,), INDEX.manifests[-1], Kind.INDEX, BOTH, True, {}, ["an attestation"] * 2),
    "single": ((SINGLE,), SINGLE.manifests[-1], Kind.MANIFEST, ["linux/arm/v6"], False, {"blobs": 1}, []),
    "single of a level": (
        (LEVEL,), LEVEL.manifests[-1], Kind.MANIFEST, ["linux/amd64"], False, {"blobs": 1}, [],
    ),
    "child of a level": (
        (LEVEL,), index_of(LEVEL.manifests[-1]),
        Kind.INDEX, ["linux/amd64/v3"], False, {"manifests": 1, "blobs": 1}, [],
    ),
    "artifact": ((CHART,), CHART.manifests[-1], Kind.ARTIFACT, [], False, {}, ["helm"]),
    "children without platform": (
        CHILDREN, index_of(*(child.manifests[-1] for child in CHILDREN)),
        Kind.INDEX, ["linux/amd64", "windows/amd64"], False, {"manifests": 2, "blobs": 2}, [],
    ),
    "nested index": ((INNER,), index_of(INNER.manifests[-1]), Kind.INDEX, BOTH, True, {"manifests": 1}, []),
    "of artifacts": ((CHART,), index_of(CHART.manifests[-1]), Kind.ARTIFACT, [], False, {"manifests": 1}, ["helm"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("served", "manifest", "kind", "platforms", "states", "requests", "skipped"), IMAGES.values(), ids=IMAGES
)
async def test_what_an_image_is_and_what_it_costs_to_know(
    served: tuple[Bundle, ...], manifest: Manifest, kind: Kind, platforms: list[str], states: bool,
    requests: dict[str, int], skipped: list[str],
) -> None:  # fmt: skip
    """What an index states is not fetched; of others a config alone names the platform. Each part left out has why."""
    registry = MemoryRegistry(*served)
    image = await describe(registry, manifest)
    assert (image.kind, platforms_of(image), image.states_platforms) == (kind, platforms, states)
    assert (image.digest, image.media_type, registry.requests) == (manifest.digest, manifest.media_type, requests)
    assert all(word in each.why for word, each in zip(skipped, image.skipped, strict=True))
    if kind is Kind.MANIFEST:  # the size is that of all a node pulls
        [entry] = image.entries
        assert entry.size_bytes == len(manifest.body) + sum(map(len, served[0].blobs))


async def test_stated_platforms_come_before_those_that_had_to_be_read() -> None:
    """Of two entries for a platform the index's word wins, and the other is named as skipped."""
    stated, read, other = (
        build_manifest("linux/amd64", OCI),
        build_manifest("linux/amd64", DOCKER),
        build_manifest("linux/s390x"),
    )
    entries = [
        {"mediaType": child.manifests[-1].media_type, "digest": child.digest, "size": 1}
        for child in (read, other, stated)
    ]
    entries[2]["platform"] = {"os": "linux", "architecture": "amd64"}
    index = Manifest(OCI_INDEX, json.dumps({"manifests": entries}).encode())
    image = await describe(MemoryRegistry(stated, read, other), index)
    assert [entry.digest for entry in image.entries] == [stated.digest, other.digest]
    assert [(skipped.digest, skipped.why) for skipped in image.skipped] == [
        (read.digest, "an earlier entry is for linux/amd64 too")
    ]
    assert image.states_platforms


async def test_config_without_platform_makes_an_artifact() -> None:
    """Cosign's signatures look like images until the config is read."""
    bundle = build_manifest("linux/amd64")
    registry = MemoryRegistry(bundle)
    registry.blobs = dict.fromkeys(registry.blobs, b'{"os": "", "architecture": ""}')
    image = await describe(registry, bundle.manifests[-1])
    assert (image.kind, image.entries) == (Kind.ARTIFACT, ())
    assert [skipped.why for skipped in image.skipped] == ["its config states no platform"]


def single_image(config: dict[str, Any], *, embedded: bool = False) -> Bundle:
    body = json.dumps(config).encode()
    descriptor: dict[str, Any] = {"mediaType": OCI.config, "digest": digest_of(body), "size": len(body)}
    if embedded:
        descriptor["data"] = base64.b64encode(body).decode()
    manifest = json.dumps({"schemaVersion": 2, "config": descriptor, "layers": []}).encode()
    return Bundle((body,), (Manifest(OCI.manifest, manifest),))


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(
    "config",
    [{"os": "linux", "architecture": "amd64", "variant": "v8"}, {"architecture": "arm32v7"}, {"os": "linux"}],
    ids=["built-on-a-mac", "no-architecture-of-that-name", "no-architecture"],
)
async def test_single_image_whose_words_mean_nothing_has_no_known_platform(
    config: dict[str, Any], embedded: bool
) -> None:
    """No node looks at them when it pulls, so they refuse none. It is no artifact either."""
    bundle = single_image(config, embedded=embedded)
    registry = MemoryRegistry(bundle)
    image = await describe(registry, bundle.manifests[-1])
    assert (image.kind, image.entries, image.states_platforms) == (Kind.MANIFEST, (), False)
    assert [skipped.digest for skipped in image.skipped] == [bundle.digest]
    assert registry.requests["blobs"] == (0 if embedded else 1)


async def test_odd_words_in_an_index_are_a_platform() -> None:
    """Runtimes compare what an index states, and the config of what it says nothing of: no node matches these."""
    config = {"os": "linux", "architecture": "amd64", "variant": "v8"}
    bundle = single_image(config)
    for index in (index_of(bundle.manifests[-1], platform=config), index_of(bundle.manifests[-1])):
        image = await describe(MemoryRegistry(bundle), index)
        assert (image.kind, platforms_of(image)) == (Kind.INDEX, ["linux/amd64/v8"])


async def test_image_of_data_has_no_platform() -> None:
    """An operator's bundle: what reads it comes from another image. In an index its platform decides about the pull."""
    labels = {"operators.operatorframework.io.bundle.mediatype.v1": "registry+v1"}
    config = {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}}
    bundle = single_image(config)
    image = await describe(MemoryRegistry(bundle), bundle.manifests[-1])
    assert (image.kind, image.entries) == (Kind.DATA, ())
    stated = await describe(MemoryRegistry(bundle), index_of(bundle.manifests[-1], platform=config))
    assert (stated.kind, platforms_of(stated)) == (Kind.INDEX, ["linux/amd64"])


async def test_a_child_whose_config_needs_features_counts_for_no_node() -> None:
    """Runtimes go by the config of an entry without a platform; a single manifest's they do not look at."""
    config = {"os": "linux", "architecture": "amd64", "os.features": ["erofs"]}
    odd, plain = single_image(config), build_manifest("linux/arm64")
    described = await describe(MemoryRegistry(odd, plain), index_of(odd.manifests[-1], plain.manifests[-1]))
    assert platforms_of(described) == ["linux/arm64"]
    assert "os.features 'erofs'" in described.skipped[0].why
    assert platforms_of(await describe(MemoryRegistry(odd), odd.manifests[-1])) == ["linux/amd64"]


async def test_loop_ends() -> None:
    """An index that leads back to itself, as no honest registry could serve it, is read once."""
    looping = index_of(build_artifact().manifests[-1])
    registry = MemoryRegistry()
    registry.manifests = dict.fromkeys((build_artifact().digest, looping.digest), looping)
    image = await describe(registry, looping)
    assert (image.kind, registry.requests) == (Kind.ARTIFACT, {"manifests": 1})


async def test_too_many_requests_make_an_image_unsupported() -> None:
    """Over the budget the image is unknown: the platforms found so far are not all of them."""
    children = [build_manifest(f"linux/fake{number}") for number in range(MAX_REQUESTS // 2 + 1)]
    registry = MemoryRegistry(*children)
    with pytest.raises(errors.UnsupportedManifest, match=f"more than {MAX_REQUESTS} requests"):
        await describe(registry, index_of(*(child.manifests[-1] for child in children)))
    assert registry.requests.total() == MAX_REQUESTS
    registry.requests.clear()
    image = await describe(registry, index_of(*(child.manifests[-1] for child in children[:-1])))
    assert (len(image.entries), registry.requests.total()) == (MAX_REQUESTS // 2, MAX_REQUESTS)


@pytest.mark.parametrize("nested", [MAX_DEPTH, MAX_DEPTH + 1])
async def test_depth_is_bounded(nested: int) -> None:
    """Four indexes within an index are read, a fifth makes it unsupported."""
    innermost = build_index(["linux/amd64"])
    indexes = [innermost.manifests[-1]]
    while len(indexes) <= nested:
        indexes.append(index_of(indexes[-1]))
    registry = MemoryRegistry(innermost, Bundle((), tuple(indexes)))
    if nested <= MAX_DEPTH:
        assert platforms_of(await describe(registry, indexes[-1])) == ["linux/amd64"]
    else:
        with pytest.raises(errors.UnsupportedManifest, match="nested"):
            await describe(registry, indexes[-1])


def index_with_optional(*children: Manifest) -> Manifest:
    """An index that states amd64 and arm64, and has children besides of which it says nothing."""
    stated = json.loads(build_index(["linux/amd64", "linux/arm64"]).manifests[-1].body)["manifests"]
    return Manifest(
        OCI_INDEX, json.dumps({"manifests": json.loads(index_of(*children).body)["manifests"] + stated}).encode()
    )


LASTING = [
    errors.ManifestNotFound("gone"), errors.RegistryDenied("no"), errors.RegistryRefusedImage("no", 451),
    errors.AddressRefused("no"), errors.InvalidManifest("other bytes"),
]  # fmt: skip


@pytest.mark.parametrize("error", LASTING, ids=lambda error: type(error).__name__)
async def test_child_that_cannot_be_had_adds_nothing_to_stated_platforms(error: Exception) -> None:
    """Runtimes look at it last. It is told among what does not run, be it the child, its config or one further in.

    So it is where its bytes are no document, and of a kind that runtimes no longer pull.
    """
    gone, broken = build_manifest("linux/s390x").manifests[-1], single_image({"os": "linux", "architecture": "ppc64le"})
    inner = index_of(gone)
    odd = [Manifest(OCI.manifest, body) for body in (b"[]", b'{"schemaVersion": 1, "fsLayers": []}')]
    registry = MemoryRegistry(Bundle((), (*broken.manifests, inner, *odd)), error=error)
    for child in (gone, broken.manifests[-1], inner, *odd):
        image = await describe(registry, index_with_optional(child))
        assert (image.kind, platforms_of(image), image.states_platforms) == (Kind.INDEX, BOTH, True)
        assert [skipped.digest for skipped in image.skipped] == [(gone if child is inner else child).digest]


async def test_child_beside_an_index_that_states_platforms_is_not_optional() -> None:
    """What one index states says nothing of its neighbours: their platforms are not known without them."""
    stated, gone = build_index(["linux/amd64"]), build_manifest("linux/arm64").manifests[-1]
    with pytest.raises(errors.ManifestNotFound):
        await describe(MemoryRegistry(stated), index_of(stated.manifests[-1], gone))


@pytest.mark.parametrize(
    "error", [errors.RegistryUnavailable("503"), errors.RegistryThrottled("429")], ids=["down", "throttled"]
)
async def test_child_that_cannot_be_had_now_leaves_what_an_index_states_known(error: Exception) -> None:
    """And nothing without that: a moment's failure must not leave out a platform for ever."""
    gone = [build_manifest(f"linux/fake{number}").manifests[-1] for number in range(3)]
    registry = MemoryRegistry(error=error)
    image = await describe(registry, index_with_optional(*gone))
    assert (platforms_of(image), image.states_platforms, image.is_partial) == (BOTH, True, True)
    assert registry.requests.total() == 1  # the others are left alone
    with pytest.raises(type(error)):
        await describe(registry, index_of(*gone))
    assert not (await describe(MemoryRegistry(), index_with_optional(*gone))).is_partial


def test_child_that_hangs_leaves_what_an_index_states_known() -> None:
    class Mute(MemoryRegistry):
        async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
            await asyncio.sleep(3600)
            raise AssertionError

    async def run() -> None:
        began_at = asyncio.get_running_loop().time()
        image = await describe(Mute(), index_with_optional(build_manifest("linux/s390x").manifests[-1]))
        assert (platforms_of(image), image.is_partial) == (BOTH, True)
        assert asyncio.get_running_loop().time() - began_at <= 5

    run_in_memory(lambda _: run())


@pytest.mark.parametrize("count", [MAX_REQUESTS // 2, MAX_REQUESTS])
async def test_more_children_than_may_be_read_leave_what_an_index_states_known(count: int) -> None:
    """Nothing of it can be read later, so the image is not partial; each child left out has why."""
    children = [build_manifest(f"linux/fake{number}") for number in range(count)]
    registry = MemoryRegistry(*children)
    image = await describe(registry, index_with_optional(*(child.manifests[-1] for child in children)))
    assert registry.requests.total() == MAX_REQUESTS
    assert platforms_of(image)[:2] == BOTH
    assert len(image.entries) == 2 + MAX_REQUESTS // 2
    left_out = [each for each in image.skipped if "more than 16 requests" in each.why]
    assert (len(left_out), image.is_partial) == (count - MAX_REQUESTS // 2, False)


def hostile_index(platforms: int, skipped: int) -> Manifest:
    """An index with the longest words and digests, and with parts that do not run for the longest reason."""
    digests = (f"sha512:{number:0128x}" for number in range(platforms + skipped))
    named = [
        {"os": f"o{number:031}", "architecture": f"a{number:031}", "variant": f"v{number:031}"}
        for number in range(platforms)
    ]
    unnamed = [dict.fromkeys(("os", "architecture", "variant"), "\N{GRINNING FACE}" * 500)] * skipped
    entries = [
        {"mediaType": OCI.manifest, "digest": digest, "platform": platform}
        for digest, platform in zip(digests, named + unnamed, strict=True)
    ]
    return Manifest(OCI_INDEX, json.dumps({"manifests": entries}).encode())


async def test_hostile_image_keeps_little_memory() -> None:
    """The largest image that is accepted keeps less than 100 KB. One with more platforms is unsupported.

    Parts that do not run are listed up to a bound and then counted; a text of the registry is cut.
    """
    image = await describe(MemoryRegistry(), hostile_index(MAX_PLATFORMS, 1000))
    assert len(image.entries) == MAX_PLATFORMS
    assert retained_bytes(image) < 100_000
    assert retained_bytes(frozenset(entry.platform for entry in image.entries)) < 32_000
    assert len(image.skipped) == LISTED_SKIPPED + 1
    assert (image.skipped[-1].digest, image.skipped[-1].why) == ("", f"{1000 - LISTED_SKIPPED} more parts do not run")
    assert all(len(skipped.why) <= 150 for skipped in image.skipped)
    with pytest.raises(errors.UnsupportedManifest, match="it has more than"):
        await describe(MemoryRegistry(), hostile_index(MAX_PLATFORMS + 1, 0))


async def test_an_index_whose_entries_all_need_features_is_an_image_for_no_node() -> None:
    """A child of which it says nothing is read all the same, and then is what nodes have."""
    platform = {"os": "linux", "architecture": "amd64", "os.features": ["erofs"]}
    image, plain = build_manifest("linux/amd64"), build_manifest("linux/arm64")
    index = index_of(image.manifests[-1], platform=platform)
    described = await describe(MemoryRegistry(image), index)
    assert (described.kind, described.entries, described.states_platforms) == (Kind.INDEX, (), True)
    parts = (index, index_of(plain.manifests[-1]))
    entries = [entry for part in parts for entry in json.loads(part.body)["manifests"]]
    both = Manifest(index.media_type, json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
    assert platforms_of(await describe(MemoryRegistry(image, plain), both)) == ["linux/arm64"]
