"""Indexes: which entries are platforms, which must be fetched to know, and which are nothing to run."""

import json
from typing import Any

import pytest

from extender.images.manifest import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    IndexDocument,
    PlatformEntry,
    read_manifest,
)
from extender.images.platform import parse_platform
from extender.images.reference import digest_of

AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64", "variant": "v8"}
UNKNOWN = {"os": "unknown", "architecture": "unknown"}
ATTESTATION = "application/vnd.docker.attestation.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"


def entry(name: str, platform: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An index entry whose digest is that of its name."""
    digest = digest_of(name.encode())
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 500, "platform": platform, **fields}


def read_index(*entries: dict[str, Any], **fields: Any) -> IndexDocument:
    """The reading of an index of these entries."""
    body = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries, **fields}).encode()
    document = read_manifest(body, "")
    assert isinstance(document, IndexDocument)
    return document


def platforms_of(document: IndexDocument) -> list[str]:
    """The platforms in the index, as text and in its order."""
    return [str(found.platform) for found in document.entries]


def test_entries_are_the_platforms_in_order() -> None:
    """Each entry that states a platform is one thing to run, with its digest and the size of its manifest."""
    document = read_index(entry("b", ARM64), entry("a", AMD64))
    assert document == IndexDocument(
        media_type=OCI_INDEX,
        entries=(
            PlatformEntry(parse_platform("linux/arm64"), digest_of(b"b"), 500),
            PlatformEntry(parse_platform("linux/amd64"), digest_of(b"a"), 500),
        ),
        children=(),
        skipped=(),
    )
    assert document.states_platforms


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST])
def test_an_entry_with_a_platform_is_never_fetched(media_type: str) -> None:
    """Runtimes choose by what the index says, so even a nested index that states a platform is taken at its word."""
    document = read_index(entry("a", AMD64, mediaType=media_type))
    assert platforms_of(document) == ["linux/amd64"]
    assert document.children == ()


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST])
@pytest.mark.parametrize(
    "platform",
    [
        pytest.param(None, id="missing"),
        pytest.param({}, id="empty"),
        pytest.param({"os": "", "architecture": ""}, id="empty words"),
        pytest.param({"os": None, "architecture": None, "variant": None}, id="nulls"),
        pytest.param({"architecture": "amd64"}, id="no operating system"),
        pytest.param({"os": "linux"}, id="no architecture"),
    ],
)
def test_an_entry_without_a_platform_is_fetched_to_know(media_type: str, platform: dict[str, Any] | None) -> None:
    """A manifest without a whole platform, or a nested index, is a child; half a platform is not completed by guess."""
    document = read_index(entry("a", platform, mediaType=media_type))
    assert document.children == (Descriptor(media_type, digest_of(b"a"), 500),)
    assert (document.entries, document.skipped, document.states_platforms) == ((), (), False)


def test_children_keep_their_order_and_come_once() -> None:
    """What must be fetched is listed in the index's order, a digest that repeats only once."""
    document = read_index(entry("b"), entry("x", AMD64), entry("a"), entry("b", mediaType=OCI_INDEX))
    assert [child.digest for child in document.children] == [digest_of(b"b"), digest_of(b"a")]


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        pytest.param(
            entry("a", UNKNOWN, annotations={"vnd.docker.reference.type": "attestation-manifest"}),
            "an attestation",
            id="BuildKit attestation",
        ),
        pytest.param(
            entry("a", AMD64, annotations={"vnd.docker.reference.type": "something-new"}),
            "an attestation",
            id="any reference type, whatever the platform",
        ),
        pytest.param(
            entry("a", annotations={"vnd.docker.reference.type": None}), "an attestation", id="reference type null"
        ),
        pytest.param(entry("a", artifactType=ATTESTATION), "an attestation", id="attestation by artifact type"),
        pytest.param(entry("a", AMD64, artifactType=ATTESTATION), "an attestation", id="attestation with a platform"),
        pytest.param(entry("a", UNKNOWN), "its platform is unknown", id="unknown/unknown"),
        pytest.param(entry("a", {**AMD64, "architecture": "Unknown"}), "its platform is unknown", id="linux/Unknown"),
        pytest.param(entry("a", {**AMD64, "os": "unknown"}), "its platform is unknown", id="unknown/amd64"),
        pytest.param(entry("a", artifactType="application/vnd.example"), "vnd.example", id="artifact"),
        pytest.param(
            entry("a", mediaType="application/vnd.oci.image.layer.v1.tar+gzip"), "layer", id="BuildKit cache layer"
        ),
        pytest.param(
            entry("a", mediaType="application/vnd.buildkit.cacheconfig.v0"), "cacheconfig", id="BuildKit cache config"
        ),
        pytest.param(entry("a", AMD64, mediaType="application/vnd.example"), "vnd.example", id="unknown type"),
        pytest.param(entry("a", AMD64, mediaType=None), "its media type is ''", id="no type"),
        pytest.param(entry("a", AMD64, mediaType=OCI_MANIFEST.upper()), "APPLICATION", id="case-sensitive"),
        pytest.param(
            entry("a", AMD64, mediaType="application/vnd.docker.distribution.manifest.v1+prettyjws"),
            "v1+",
            id="schema1",
        ),
        pytest.param(entry("a", {**AMD64, "architecture": "a/b"}), "is no platform", id="a slash in a word"),
        pytest.param(entry("a", {**AMD64, "os": "li\nnux"}), "is no platform", id="a line break in a word"),
        pytest.param(entry("a", {**AMD64, "variant": "x" * 64}), "is no platform", id="a word that no label holds"),
    ],
)
def test_what_is_nothing_to_run_is_skipped_with_a_reason(descriptor: dict[str, Any], why: str) -> None:
    """Attestations, artifacts, caches and unknown types are passed over, and the rest of the index still counts."""
    document = read_index(descriptor, entry("good", ARM64))
    assert platforms_of(document) == ["linux/arm64"]
    assert document.children == ()
    assert [skipped.digest for skipped in document.skipped] == [digest_of(b"a")]
    assert why in document.skipped[0].why
    assert document.skipped[0].why.isprintable()


@pytest.mark.parametrize("digest", [None, "", "sha256:1", "sha256:" + "A" * 64, "sha256:../../../token"])
def test_an_entry_without_a_digest_is_skipped(digest: str | None) -> None:
    """An entry that no node can pull is no platform, and what is no digest goes nowhere."""
    document = read_index(entry("a", AMD64, digest=digest))
    assert (document.entries, document.children) == ((), ())
    assert [(skipped.digest, skipped.why) for skipped in document.skipped] == [
        ("", "its digest is missing or not valid")
    ]


@pytest.mark.parametrize(
    ("descriptor", "platform"),
    [
        pytest.param(entry("a", {"os": "wasi", "architecture": "wasm"}), "wasi/wasm", id="wasm"),
        pytest.param(
            entry("a", {"os": "linux", "architecture": "fake"}), "linux/fake", id="an architecture of its own"
        ),
        pytest.param(entry("a", {"os": "linux", "architecture": "x86_64"}), "linux/amd64", id="synonym"),
        pytest.param(entry("a", {**AMD64, "os.features": None, "features": []}), "linux/amd64", id="features"),
        pytest.param(entry("a", AMD64, artifactType="application/vnd.example"), "linux/amd64", id="artifact type"),
        pytest.param(entry("a", AMD64, annotations={"x": "y"}, size=None), "linux/amd64", id="other annotations"),
        pytest.param(entry("a", AMD64, digest=digest_of(b"a", "sha512")), "linux/amd64", id="sha512"),
    ],
)
def test_what_states_a_platform_counts(descriptor: dict[str, Any], platform: str) -> None:
    """Runtimes look at the platform alone, so nothing else about an entry takes its platform away."""
    assert platforms_of(read_index(descriptor)) == [platform]


def test_an_artifact_type_that_repeats_the_image_config_is_fetched() -> None:
    """The artifactType of an entry may be its config's media type, which makes it an image, not an artifact."""
    assert len(read_index(entry("a", artifactType=OCI_CONFIG)).children) == 1


def test_a_nested_index_is_fetched_whatever_its_artifact_type() -> None:
    """An artifact type on an index says nothing of what is inside it."""
    assert len(read_index(entry("a", mediaType=OCI_INDEX, artifactType="application/example")).children) == 1


def test_an_index_with_an_artifact_type_is_read_all_the_same() -> None:
    """Runtimes do not look at an index's artifact type: its platforms are what a node chooses from."""
    assert platforms_of(read_index(entry("a", AMD64), artifactType="application/example")) == ["linux/amd64"]


@pytest.mark.parametrize(
    ("first", "twin", "platform"),
    [
        pytest.param(
            entry("a", AMD64),
            entry("b", AMD64, annotations={"io.github.containers.compression.zstd": "true"}),
            "linux/amd64",
            id="zstd",
        ),
        pytest.param(
            entry("a", {"os": "windows", "architecture": "amd64", "os.version": "10.0.17763.5576"}),
            entry("b", {"os": "windows", "architecture": "amd64", "os.version": "10.0.20348.2340"}),
            "windows/amd64",
            id="Windows builds",
        ),
        pytest.param(
            entry("a", ARM64), entry("b", {"os": "linux", "architecture": "aarch64"}), "linux/arm64", id="spellings"
        ),
        pytest.param(entry("a", AMD64), entry("a", AMD64), "linux/amd64", id="listed twice"),
    ],
)
def test_of_twins_the_first_counts(first: dict[str, Any], twin: dict[str, Any], platform: str) -> None:
    """An index has one entry per platform, the one a runtime would meet first."""
    document = read_index(first, twin)
    assert [(str(found.platform), found.digest) for found in document.entries] == [(platform, first["digest"])]
    assert [(found.digest, found.why) for found in document.skipped] == [
        (twin["digest"], f"an earlier entry is for {platform} too")
    ]


@pytest.mark.parametrize("manifests", [[], None])
def test_an_empty_index_has_nothing_to_run(manifests: list[Any] | None) -> None:
    """An index may be empty, and Go writes an empty list as null; neither is an error."""
    body = json.dumps({"mediaType": OCI_INDEX, "manifests": manifests}).encode()
    assert read_manifest(body, OCI_INDEX) == IndexDocument(media_type=OCI_INDEX, entries=(), children=(), skipped=())


def test_a_large_index_is_read_whole() -> None:
    """Nothing is dropped silently below the limit on objects."""
    document = read_index(
        *(entry(str(number), {"os": "linux", "architecture": f"a{number}"}) for number in range(4000))
    )
    assert len(document.entries) == 4000


def test_escapes_and_duplicate_keys_are_read_as_json_has_them() -> None:
    r"""`\/` is a slash, and of a key that comes twice the last one counts."""
    body = (
        r'{"mediaType":"application\/vnd.oci.image.index.v1+json","manifests":[{"mediaType":'
        r'"application\/vnd.oci.image.manifest.v1+json","digest":"' + digest_of(b"a") + r'","size":1,"platform":'
        r'{"os":"windows","os":"linux","architecture":"arm\u00364"}}]}'
    )
    document = read_manifest(body.encode(), OCI_INDEX)
    assert isinstance(document, IndexDocument)
    assert platforms_of(document) == ["linux/arm64"]
