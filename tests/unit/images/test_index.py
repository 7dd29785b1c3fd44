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
MEDIA_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST)
SCHEMA1 = "application/vnd.docker.distribution.manifest.v1+prettyjws"
LAYER, CACHE = "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.buildkit.cacheconfig.v0"
ZSTD = {"annotations": {"io.github.containers.compression.zstd": "true"}}
WINDOWS = {"os": "windows", "architecture": "amd64"}
BUILDS = ({**WINDOWS, "os.version": "10.0.17763.5576"}, {**WINDOWS, "os.version": "10.0.20348.2340"})


def entry(name: str, platform: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    digest = digest_of(name.encode())
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 500, "platform": platform, **fields}


def read_index(*entries: dict[str, Any], **fields: Any) -> IndexDocument:
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
    of = {name: PlatformEntry(parse_platform(f"linux/{text}"), digest_of(name.encode()), 500)
          for name, text in (("b", "arm64"), ("a", "amd64"))}  # fmt: skip
    assert document == IndexDocument(media_type=OCI_INDEX, entries=(of["b"], of["a"]), children=(), skipped=())
    assert document.states_platforms


NO_PLATFORM: tuple[dict[str, Any] | None, ...] = (
    None, {}, {"os": "", "architecture": ""}, {"os": None, "architecture": None, "variant": None},
    {"architecture": "amd64"}, {"os": "linux"},
)  # fmt: skip


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_an_entry_with_a_platform_is_never_fetched(media_type: str) -> None:
    """Runtimes choose by what the index says, so even a nested index that states a platform is taken at its word."""
    document = read_index(entry("a", AMD64, mediaType=media_type))
    assert platforms_of(document) == ["linux/amd64"]
    assert document.children == ()


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_an_entry_without_a_platform_is_fetched_to_know(media_type: str) -> None:
    """A manifest without a whole platform, or a nested index, is a child; half a platform is not completed by guess."""
    for platform in NO_PLATFORM:
        document = read_index(entry("a", platform, mediaType=media_type))
        assert document.children == (Descriptor(media_type, digest_of(b"a"), 500),)
        assert (document.entries, document.skipped, document.states_platforms) == ((), (), False)


def test_children_keep_their_order_and_come_once() -> None:
    """What must be fetched is listed in the index's order, a digest that repeats only once."""
    document = read_index(entry("b"), entry("x", AMD64), entry("a"), entry("b", mediaType=OCI_INDEX))
    assert [child.digest for child in document.children] == [digest_of(b"b"), digest_of(b"a")]


def of_reference(kind: str | None) -> dict[str, Any]:
    return {"annotations": {"vnd.docker.reference.type": kind}}


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        pytest.param(entry("a", UNKNOWN, **of_reference("attestation-manifest")), "an attestation", id="BuildKit's"),
        pytest.param(entry("a", AMD64, **of_reference("something-new")), "an attestation", id="any reference type"),
        pytest.param(entry("a", **of_reference(None)), "an attestation", id="reference type null"),
        pytest.param(entry("a", artifactType=ATTESTATION), "an attestation", id="attestation by artifact type"),
        pytest.param(entry("a", AMD64, artifactType=ATTESTATION), "an attestation", id="attestation with a platform"),
        pytest.param(entry("a", UNKNOWN), "its platform is unknown", id="unknown/unknown"),
        pytest.param(entry("a", {**AMD64, "architecture": "Unknown"}), "its platform is unknown", id="linux/Unknown"),
        pytest.param(entry("a", {**AMD64, "os": "unknown"}), "its platform is unknown", id="unknown/amd64"),
        pytest.param(entry("a", artifactType="application/vnd.example"), "vnd.example", id="artifact"),
        pytest.param(entry("a", mediaType=LAYER), "layer", id="BuildKit cache layer"),
        pytest.param(entry("a", mediaType=CACHE), "cacheconfig", id="BuildKit cache config"),
        pytest.param(entry("a", AMD64, mediaType="application/vnd.example"), "vnd.example", id="unknown type"),
        pytest.param(entry("a", AMD64, mediaType=None), "its media type is ''", id="no type"),
        pytest.param(entry("a", AMD64, mediaType=OCI_MANIFEST.upper()), "APPLICATION", id="case-sensitive"),
        pytest.param(entry("a", AMD64, mediaType=SCHEMA1), "v1+", id="schema1"),
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


def test_an_entry_without_a_digest_is_skipped() -> None:
    """An entry that no node can pull is no platform, and what is no digest goes nowhere."""
    for digest in (None, "", "sha256:1", "sha256:" + "A" * 64, "sha256:../../../token"):
        document = read_index(entry("a", AMD64, digest=digest))
        assert (document.entries, document.children) == ((), ())
        [skipped] = document.skipped
        assert (skipped.digest, skipped.why) == ("", "its digest is missing or not valid")


@pytest.mark.parametrize(
    ("descriptor", "platform"),
    [
        pytest.param(entry("a", {"os": "wasi", "architecture": "wasm"}), "wasi/wasm", id="wasm"),
        pytest.param(entry("a", {"os": "linux", "architecture": "fake"}), "linux/fake", id="of its own"),
        pytest.param(entry("a", {"os": "linux", "architecture": "x86_64"}), "linux/amd64", id="synonym"),
        pytest.param(entry("a", {**AMD64, "os.features": None, "features": []}), "linux/amd64", id="features"),
        pytest.param(entry("a", AMD64, artifactType="application/vnd.example"), "linux/amd64", id="artifact type"),
        pytest.param(entry("a", AMD64, annotations={"x": "y"}, size=None), "linux/amd64", id="other annotations"),
        pytest.param(entry("a", AMD64, digest=digest_of(b"a", "sha512")), "linux/amd64", id="sha512"),
    ],
)
def test_what_states_a_platform_counts(descriptor: dict[str, Any], platform: str) -> None:
    """Runtimes look at the platform alone, so nothing else about an entry, or an index, takes its platform away."""
    assert platforms_of(read_index(descriptor)) == [platform]
    assert platforms_of(read_index(descriptor, artifactType="application/example")) == [platform]


def test_an_artifact_type_may_be_that_of_an_image() -> None:
    """It repeats a config's media type, or stands on an index, of whose inside it says nothing."""
    assert len(read_index(entry("a", artifactType=OCI_CONFIG)).children) == 1
    assert len(read_index(entry("a", mediaType=OCI_INDEX, artifactType="application/example")).children) == 1


@pytest.mark.parametrize(
    ("first", "twin", "platform"),
    [
        pytest.param(entry("a", AMD64), entry("b", AMD64, **ZSTD), "linux/amd64", id="zstd"),
        pytest.param(entry("a", BUILDS[0]), entry("b", BUILDS[1]), "windows/amd64", id="Windows builds"),
        pytest.param(entry("a", ARM64), entry("b", {**ARM64, "variant": ""}), "linux/arm64", id="spellings"),
        pytest.param(entry("a", AMD64), entry("a", AMD64), "linux/amd64", id="listed twice"),
    ],
)
def test_of_twins_the_first_counts(first: dict[str, Any], twin: dict[str, Any], platform: str) -> None:
    """An index has one entry per platform, the one a runtime would meet first."""
    document = read_index(first, twin)
    assert [(str(found.platform), found.digest) for found in document.entries] == [(platform, first["digest"])]
    [skipped] = document.skipped
    assert (skipped.digest, skipped.why) == (twin["digest"], f"an earlier entry is for {platform} too")


def test_an_empty_index_has_nothing_to_run() -> None:
    """An index may be empty, and Go writes an empty list as null; neither is an error."""
    nothing: list[Any] | None
    for nothing in ([], None):
        body = json.dumps({"mediaType": OCI_INDEX, "manifests": nothing}).encode()
        assert read_manifest(body, OCI_INDEX) == IndexDocument(
            media_type=OCI_INDEX, entries=(), children=(), skipped=()
        )


def test_a_large_index_is_read_whole() -> None:
    """Nothing is dropped silently below the limit on objects."""
    words = ({"os": "linux", "architecture": f"a{number}"} for number in range(4000))
    assert len(read_index(*(entry(each["architecture"], each) for each in words)).entries) == 4000


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
