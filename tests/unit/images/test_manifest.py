"""Manifest documents: which kind they are, single manifests, and which entries of an index are platforms."""

import base64
import json
from typing import Any

import pytest

from extender.errors import InvalidManifest, UnsupportedManifest
from extender.images.manifest import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    SIGNED_SCHEMA1,
    ArtifactDocument,
    Descriptor,
    Document,
    IndexDocument,
    ManifestDocument,
    PlatformEntry,
    read_manifest,
)
from extender.images.platform import parse_platform
from extender.images.reference import digest_of

SCHEMA1 = "application/vnd.docker.distribution.manifest.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = b'{"architecture":"arm64","os":"linux"}'

INDEX_FIELDS = {"manifests": [{"mediaType": OCI_MANIFEST, "digest": digest_of(b"child"), "size": 1}]}
MANIFEST_FIELDS = {"config": {"mediaType": OCI_CONFIG, "digest": digest_of(CONFIG), "size": len(CONFIG)}, "layers": []}
SCHEMA1_FIELDS = {"schemaVersion": 1, "architecture": "amd64", "fsLayers": [{"blobSum": digest_of(b"layer")}]}
DOCKER_ATTESTATION = "application/vnd.docker.attestation.manifest.v1+json"


def read(document: object, content_type: str = "") -> Document:
    return read_manifest(json.dumps(document).encode(), content_type)


def manifest(**fields: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": OCI_MANIFEST, **MANIFEST_FIELDS, **fields}


def config(**fields: Any) -> dict[str, Any]:
    return {**MANIFEST_FIELDS["config"], **fields}  # type: ignore[dict-item]  # a dict in a mixed dict


KINDS: list[tuple[dict[str, Any], str | None, str, str]] = [
    (INDEX_FIELDS, DOCKER_LIST, DOCKER_LIST, DOCKER_LIST),
    (INDEX_FIELDS, OCI_INDEX, OCI_INDEX, OCI_INDEX),
    (INDEX_FIELDS, None, OCI_INDEX, OCI_INDEX),
    (INDEX_FIELDS, None, f"{OCI_INDEX}; charset=utf-8", OCI_INDEX),
    (INDEX_FIELDS, None, f" {DOCKER_LIST} ;", DOCKER_LIST),
    (INDEX_FIELDS, OCI_INDEX, "text/plain; charset=utf-8", OCI_INDEX),
    (INDEX_FIELDS, DOCKER_LIST, "application/json", DOCKER_LIST),
    (INDEX_FIELDS, DOCKER_LIST, "", DOCKER_LIST),
    (INDEX_FIELDS, None, "text/plain", OCI_INDEX),
    (INDEX_FIELDS, None, "application/octet-stream", OCI_INDEX),
    (INDEX_FIELDS, None, "", OCI_INDEX),
    (INDEX_FIELDS, "application/vnd.example+json", OCI_INDEX, OCI_INDEX),
    # two names of one family: a registry that calls a docker list an OCI index serves what nodes pull
    (INDEX_FIELDS, DOCKER_LIST, OCI_INDEX, DOCKER_LIST),
    (INDEX_FIELDS, OCI_INDEX, DOCKER_LIST, OCI_INDEX),
    (MANIFEST_FIELDS, DOCKER_MANIFEST, OCI_MANIFEST, DOCKER_MANIFEST),
    (MANIFEST_FIELDS, OCI_MANIFEST, DOCKER_MANIFEST, OCI_MANIFEST),
    (MANIFEST_FIELDS, DOCKER_MANIFEST, DOCKER_MANIFEST, DOCKER_MANIFEST),
    (MANIFEST_FIELDS, OCI_MANIFEST, OCI_MANIFEST, OCI_MANIFEST),
    (MANIFEST_FIELDS, None, OCI_MANIFEST, OCI_MANIFEST),
    (MANIFEST_FIELDS, OCI_MANIFEST, "application/json", OCI_MANIFEST),
    (MANIFEST_FIELDS, None, "application/json", OCI_MANIFEST),
    (MANIFEST_FIELDS, None, "binary/octet-stream", OCI_MANIFEST),
    (MANIFEST_FIELDS, "", "", OCI_MANIFEST),
]


def test_the_kind_is_what_body_header_and_shape_agree_on() -> None:
    """A generic or missing type says nothing; the document's shape decides where no one else does."""
    for fields, stated, content_type, media_type in KINDS:
        document = read({"schemaVersion": 2, "mediaType": stated, **fields}, content_type)
        assert document.media_type == media_type, (stated, content_type)
        assert isinstance(document, IndexDocument if fields is INDEX_FIELDS else ManifestDocument)


@pytest.mark.parametrize(
    ("document", "content_type", "why"),
    [
        pytest.param({"mediaType": OCI_INDEX, **INDEX_FIELDS}, OCI_MANIFEST, "the registry calls it", id="two kinds"),
        pytest.param({"mediaType": OCI_MANIFEST, **MANIFEST_FIELDS}, SCHEMA1, "the registry calls it", id="schema1"),
        pytest.param({**INDEX_FIELDS, **MANIFEST_FIELDS}, OCI_INDEX, "two in one", id="manifests and config"),
        pytest.param({"manifests": [], "layers": []}, OCI_MANIFEST, "two in one", id="both empty"),
        pytest.param({**SCHEMA1_FIELDS, **MANIFEST_FIELDS}, OCI_MANIFEST, "two in one", id="fsLayers and config"),
        pytest.param({**SCHEMA1_FIELDS, **INDEX_FIELDS}, "", "two in one", id="fsLayers and manifests"),
        pytest.param(SCHEMA1_FIELDS, OCI_MANIFEST, "does not look like one", id="fsLayers called a manifest"),
        pytest.param(MANIFEST_FIELDS, OCI_INDEX, "does not look like one", id="manifest called an index"),
        pytest.param({"mediaType": OCI_MANIFEST, **INDEX_FIELDS}, "", "does not look like one", id="index, a manifest"),
        pytest.param(MANIFEST_FIELDS, SIGNED_SCHEMA1, "does not look like one", id="manifest called schema1"),
        pytest.param({}, "", "neither", id="an empty object"),
        pytest.param({"errors": [{"code": "DENIED"}]}, "application/json", "neither", id="an error body"),
        pytest.param({"manifests": None, "config": None}, "", "neither", id="all null"),
        pytest.param([], OCI_INDEX, "Expected `object`", id="an array"),
        pytest.param({"manifests": {}}, OCI_INDEX, "Expected `array", id="manifests is an object"),
        pytest.param({"manifests": [1]}, OCI_INDEX, "Expected `object", id="a number for an entry"),
        pytest.param({"manifests": [{"size": 1.5}]}, OCI_INDEX, "Expected `int", id="a size in parts"),
        pytest.param({"mediaType": 1, **INDEX_FIELDS}, OCI_INDEX, "Expected `str", id="a number for a type"),
    ],
)
def test_a_document_of_two_kinds_or_none_is_refused(document: object, content_type: str, why: str) -> None:
    """One reading per document: what could be read as two things by two programs is not read at all."""
    with pytest.raises(InvalidManifest, match=why):
        read(document, content_type)


@pytest.mark.parametrize(
    ("document", "content_type"),
    [
        pytest.param(SCHEMA1_FIELDS, SCHEMA1, id="schema1"),
        pytest.param(SCHEMA1_FIELDS, f"{SIGNED_SCHEMA1}; charset=utf-8", id="signed schema1"),
        pytest.param(SCHEMA1_FIELDS, "text/plain", id="told by its fields"),
        pytest.param({**SCHEMA1_FIELDS, "mediaType": SIGNED_SCHEMA1}, "", id="told by itself"),
    ],
)
def test_schema1_is_unsupported(document: object, content_type: str) -> None:
    with pytest.raises(UnsupportedManifest, match="schema1"):
        read(document, content_type)


def test_a_document_of_an_unknown_type_is_an_artifact() -> None:
    """A type that the document gives itself and nobody knows is not read by its shape."""
    document = read({"mediaType": "application/vnd.oci.artifact.manifest.v1+json", "blobs": []}, "application/json")
    assert isinstance(document, ArtifactDocument)
    assert "artifact.manifest" in document.why


@pytest.mark.parametrize("content_type", [OCI_INDEX, ""])
def test_a_million_objects_are_not_looked_at(content_type: str) -> None:
    with pytest.raises(UnsupportedManifest, match="more than 10000 objects"):
        read_manifest(b'{"manifests":[' + b"{}," * 1_000_000 + b"{}]}", content_type)


def test_a_manifest_asks_for_its_config() -> None:
    """A single manifest states no platform; its config has to be fetched, and the sizes add up to what a node pulls."""
    body = json.dumps(manifest(layers=[{"mediaType": LAYER, "digest": "x", "size": 1000}, {"size": 24}, {}])).encode()
    assert read_manifest(body, OCI_MANIFEST) == ManifestDocument(
        media_type=OCI_MANIFEST,
        config=Descriptor(OCI_CONFIG, digest_of(CONFIG), len(CONFIG)),
        embedded=None,
        size_bytes=len(body) + len(CONFIG) + 1024,
    )


def test_image_configs_and_what_old_registries_made_of_them_are_fetched() -> None:
    """Both image configs are asked for, and so are the meaningless types that old registries put in their place."""
    meaningless = (None, "", "application/octet-stream", "application/json", "text/html")
    for config_type in (DOCKER_CONFIG, OCI_CONFIG, *meaningless):
        document = read(manifest(config=config(mediaType=config_type)))
        assert isinstance(document, ManifestDocument)
        assert document.config.media_type == (config_type or "")
    assert isinstance(read(manifest(artifactType=OCI_CONFIG)), ManifestDocument)  # as some tools copy it


def test_every_optional_field_and_element_may_be_null() -> None:
    nulls = dict.fromkeys(("mediaType", "artifactType", "layers", "manifests", "fsLayers", "annotations", "subject"))
    for layers in (None, [None]):
        fields = nulls | {"layers": layers}
        document = read(manifest(**fields, config=config(annotations=None, data=None, platform=None)))
        assert isinstance(document, ManifestDocument)
        assert document.media_type == OCI_MANIFEST
    index = read({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [None]})
    assert isinstance(index, IndexDocument)
    assert [each.why for each in index.skipped] == ["its digest is missing or not valid"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"config": config(mediaType="application/vnd.cncf.helm.config.v1+json")}, "helm", id="helm chart"),
        pytest.param({"config": config(mediaType="application/vnd.wasm.config.v0+json")}, "wasm", id="pure wasm"),
        pytest.param({"config": config(mediaType="application/vnd.oci.empty.v1+json")}, "oci.empty", id="empty config"),
        pytest.param({"config": config(mediaType=LAYER)}, "layer", id="a layer for a config"),
        pytest.param({"config": config(mediaType=OCI_CONFIG.upper())}, "APPLICATION", id="types are case-sensitive"),
        pytest.param({"artifactType": "application/vnd.example"}, "vnd.example", id="artifact type"),
        pytest.param({"artifactType": DOCKER_ATTESTATION}, "attestation", id="attestation"),
        pytest.param({"config": config(mediaType="a/\n\x1b" + "x" * 10_000)}, "a/\\n\\x1bxx", id="cut and escaped"),
    ],
)
def test_a_manifest_of_something_else_is_an_artifact(fields: dict[str, Any], why: str) -> None:
    """Only a manifest whose config is an image's is an image; other configs are not even asked for."""
    document = read(manifest(**fields))
    assert isinstance(document, ArtifactDocument)
    assert why in document.why
    assert document.why.isprintable()
    assert len(document.why) < 150


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"config": None}, "no config", id="no config"),
        pytest.param({"config": config(digest=None)}, "no valid digest", id="no digest"),
        pytest.param({"config": config(digest="sha256:../../etc")}, "no valid digest", id="no digest's text"),
        pytest.param({"config": config(digest="md5:" + "a" * 32)}, "no valid digest", id="unregistered algorithm"),
        pytest.param({"config": "sha256"}, "Expected `object", id="config is a string"),
        pytest.param({"config": config(size="1")}, "Expected `int", id="size is a string"),
        pytest.param({"layers": [1]}, "Expected `object", id="a layer is a number"),
    ],
)
def test_a_manifest_without_a_usable_config_is_refused(fields: dict[str, Any], why: str) -> None:
    """A digest goes into an address, so nothing but a digest is handed on."""
    with pytest.raises(InvalidManifest, match=why):
        read(manifest(**fields))


def embedded_in(**fields: Any) -> bytes | None:
    document = read(manifest(config=config(**fields)))
    assert isinstance(document, ManifestDocument)
    return document.embedded


def test_an_embedded_config_answers_at_once() -> None:
    """One in the descriptor's data needs no request when size and digest vouch for it; else it is asked for."""
    data, other = (base64.b64encode(each).decode() for each in (CONFIG, CONFIG.replace(b"arm64", b"amd64")))
    assert embedded_in(data=data) == CONFIG
    assert embedded_in(data=other) is None
    assert embedded_in(data=data, size=1) is None
    assert embedded_in(data=data, size=None) is None
    assert [embedded_in(data=each) for each in ("not base64!", "ä", "")] == [None] * 3


def test_absurd_sizes_stay_within_64_bits() -> None:
    """Sizes are the document's word: never negative, never more than the specification's int64."""
    for size, counted in ((None, 0), (-1, 0), (2**63 - 1, 2**63 - 1)):
        document = read(manifest(config=config(size=size), layers=[{"size": size}]))
        assert isinstance(document, ManifestDocument)
        assert document.config.size_bytes == counted
        assert counted <= document.size_bytes <= 2**63 - 1


AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64", "variant": "v8"}
UNKNOWN = {"os": "unknown", "architecture": "unknown"}
MEDIA_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST)
CACHE = "application/vnd.buildkit.cacheconfig.v0"
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
    return [str(found.platform) for found in document.entries]


def test_entries_are_the_platforms_in_order() -> None:
    """Each entry that states a platform is one thing to run, with its digest and the size of its manifest."""
    document = read_index(entry("b", ARM64), entry("a", AMD64))
    of = {name: PlatformEntry(parse_platform(f"linux/{text}"), digest_of(name.encode()), 500)
          for name, text in (("b", "arm64"), ("a", "amd64"))}  # fmt: skip
    assert document == IndexDocument(
        media_type=OCI_INDEX, entries=(of["b"], of["a"]), children=(), skipped=(), states_platforms=True
    )
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
        pytest.param(entry("a", artifactType=DOCKER_ATTESTATION), "an attestation", id="attestation by artifact type"),
        pytest.param(
            entry("a", AMD64, artifactType=DOCKER_ATTESTATION), "an attestation", id="attestation with a platform"
        ),
        pytest.param(entry("a", UNKNOWN), "its platform is unknown", id="unknown/unknown"),
        pytest.param(entry("a", {**AMD64, "architecture": "Unknown"}), "its platform is unknown", id="linux/Unknown"),
        pytest.param(entry("a", {**AMD64, "os": "unknown"}), "its platform is unknown", id="unknown/amd64"),
        pytest.param(entry("a", artifactType="application/vnd.example"), "vnd.example", id="artifact"),
        pytest.param(entry("a", mediaType=LAYER), "layer", id="BuildKit cache layer"),
        pytest.param(entry("a", mediaType=CACHE), "cacheconfig", id="BuildKit cache config"),
        pytest.param(entry("a", AMD64, mediaType="application/vnd.example"), "vnd.example", id="unknown type"),
        pytest.param(entry("a", AMD64, mediaType=None), "its media type is ''", id="no type"),
        pytest.param(entry("a", AMD64, mediaType=OCI_MANIFEST.upper()), "APPLICATION", id="case-sensitive"),
        pytest.param(entry("a", AMD64, mediaType=SIGNED_SCHEMA1), "v1+", id="schema1"),
        pytest.param(entry("a", {**AMD64, "architecture": "a/b"}), "is no platform", id="a slash in a word"),
        pytest.param(entry("a", {**AMD64, "os": "li\nnux"}), "is no platform", id="a line break in a word"),
        pytest.param(entry("a", {**AMD64, "variant": "x" * 64}), "is no platform", id="a word that no label holds"),
        pytest.param(entry("a", {**AMD64, "os.features": ["erofs"]}), "os.features 'erofs'", id="features"),
        pytest.param(entry("a", {**AMD64, "os.features": ["win32k"]}), "'win32k'", id="of another system"),
        pytest.param(entry("a", {**WINDOWS, "os.features": ["win32k", "x"]}), "os.features 'x'", id="one of two"),
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


@pytest.mark.parametrize("features", [None, [], [None], [""]], ids=str)
def test_an_entry_that_needs_no_features_counts(features: list[str | None] | None) -> None:
    """And one for Windows that needs what every node of it has."""
    entries = (entry("a", {**AMD64, "os.features": features}), entry("b", {**WINDOWS, "os.features": ["win32k"]}))
    assert platforms_of(read_index(*entries)) == ["linux/amd64", "windows/amd64"]


def test_an_entry_that_needs_features_does_not_stand_for_a_plain_one() -> None:
    """Whichever comes first: nodes pull the plain one."""
    plain, other = entry("a", AMD64), entry("b", {**AMD64, "os.features": ["nydus"]})
    for entries in ((plain, other), (other, plain)):
        document = read_index(*entries, entry("c", ARM64))
        assert platforms_of(document) == ["linux/amd64", "linux/arm64"]
        assert document.entries[0].digest == digest_of(b"a")


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
        pytest.param(entry("a", {"os": "wasi", "architecture": "wasm"}), "wasip1/wasm", id="wasm"),
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


@pytest.mark.parametrize("nothing", [[], None])
def test_an_empty_index_has_nothing_to_run(nothing: Any) -> None:
    found = read({"mediaType": OCI_INDEX, "manifests": nothing}, OCI_INDEX)
    assert found == IndexDocument(media_type=OCI_INDEX, entries=(), children=(), skipped=(), states_platforms=False)


def test_a_large_index_is_read_whole() -> None:
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
