"""Manifest documents: which kind they are, and single manifests. Indexes have a file of their own."""

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
    read_manifest,
)
from extender.images.reference import digest_of

SCHEMA1 = "application/vnd.docker.distribution.manifest.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = b'{"architecture":"arm64","os":"linux"}'

INDEX_FIELDS = {"manifests": [{"mediaType": OCI_MANIFEST, "digest": digest_of(b"child"), "size": 1}]}
MANIFEST_FIELDS = {"config": {"mediaType": OCI_CONFIG, "digest": digest_of(CONFIG), "size": len(CONFIG)}, "layers": []}
SCHEMA1_FIELDS = {"schemaVersion": 1, "architecture": "amd64", "fsLayers": [{"blobSum": digest_of(b"layer")}]}


def read(document: object, content_type: str = "") -> Document:
    """The reading of a document built in a test."""
    return read_manifest(json.dumps(document).encode(), content_type)


def manifest(**fields: Any) -> dict[str, Any]:
    """A single manifest with some fields changed; None takes one out."""
    return {"schemaVersion": 2, "mediaType": OCI_MANIFEST, **MANIFEST_FIELDS, **fields}


def config(**fields: Any) -> dict[str, Any]:
    """The config descriptor of a manifest with some fields changed."""
    return {**MANIFEST_FIELDS["config"], **fields}  # type: ignore[dict-item]  # a dict in a mixed dict


@pytest.mark.parametrize(
    ("fields", "stated", "content_type", "media_type"),
    [
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
        (MANIFEST_FIELDS, DOCKER_MANIFEST, DOCKER_MANIFEST, DOCKER_MANIFEST),
        (MANIFEST_FIELDS, OCI_MANIFEST, OCI_MANIFEST, OCI_MANIFEST),
        (MANIFEST_FIELDS, None, OCI_MANIFEST, OCI_MANIFEST),
        (MANIFEST_FIELDS, OCI_MANIFEST, "application/json", OCI_MANIFEST),
        (MANIFEST_FIELDS, None, "application/json", OCI_MANIFEST),
        (MANIFEST_FIELDS, None, "binary/octet-stream", OCI_MANIFEST),
        (MANIFEST_FIELDS, "", "", OCI_MANIFEST),
    ],
)
def test_the_kind_is_what_body_header_and_shape_agree_on(
    fields: dict[str, Any], stated: str | None, content_type: str, media_type: str
) -> None:
    """A generic or missing type says nothing; the document's shape decides where no one else does."""
    document = read({"schemaVersion": 2, "mediaType": stated, **fields}, content_type)
    assert document.media_type == media_type
    assert isinstance(document, IndexDocument) == (fields is INDEX_FIELDS)


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
        pytest.param({"manifests": [1]}, OCI_INDEX, "Expected `object`", id="a number for an entry"),
        pytest.param({"manifests": [{"size": 2**70}]}, OCI_INDEX, "Expected `int", id="a size that is no int64"),
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
    """Runtimes no longer pull schema1, so its architecture is not read, and that is no fault of the bytes."""
    with pytest.raises(UnsupportedManifest, match="schema1"):
        read(document, content_type)


def test_a_document_of_an_unknown_type_is_an_artifact() -> None:
    """A type that the document gives itself and nobody knows is not read by its shape."""
    document = read({"mediaType": "application/vnd.oci.artifact.manifest.v1+json", "blobs": []}, "application/json")
    assert isinstance(document, ArtifactDocument)
    assert "artifact.manifest" in document.why


@pytest.mark.parametrize("content_type", [OCI_INDEX, ""])
def test_a_million_objects_are_not_looked_at(content_type: str) -> None:
    """A document of more objects than any image has is refused before it is decoded."""
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


@pytest.mark.parametrize(
    "config_type", [DOCKER_CONFIG, OCI_CONFIG, None, "", "application/octet-stream", "application/json", "text/html"]
)
def test_image_configs_and_what_old_registries_made_of_them_are_fetched(config_type: str | None) -> None:
    """Both image configs are asked for, and so are the meaningless types that old registries put in their place."""
    document = read(manifest(config=config(mediaType=config_type)))
    assert isinstance(document, ManifestDocument)
    assert document.config.media_type == (config_type or "")


def test_every_optional_field_may_be_null() -> None:
    """Null is as good as missing, as Go's encoders write it."""
    nulls = {
        "artifactType": None,
        "layers": None,
        "manifests": None,
        "fsLayers": None,
        "annotations": None,
        "subject": None,
    }
    document = read(
        {**manifest(**nulls), "mediaType": None, "config": config(annotations=None, data=None, platform=None)}
    )
    assert isinstance(document, ManifestDocument)
    assert document.media_type == OCI_MANIFEST


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"config": config(mediaType="application/vnd.cncf.helm.config.v1+json")}, "helm", id="helm chart"),
        pytest.param({"config": config(mediaType="application/vnd.wasm.config.v0+json")}, "wasm", id="pure wasm"),
        pytest.param({"config": config(mediaType="application/vnd.oci.empty.v1+json")}, "oci.empty", id="empty config"),
        pytest.param({"config": config(mediaType=LAYER)}, "layer", id="a layer for a config"),
        pytest.param({"config": config(mediaType=OCI_CONFIG.upper())}, "APPLICATION", id="types are case-sensitive"),
        pytest.param({"artifactType": "application/vnd.example"}, "vnd.example", id="artifact type"),
        pytest.param(
            {"artifactType": "application/vnd.docker.attestation.manifest.v1+json"}, "attestation", id="attestation"
        ),
    ],
)
def test_a_manifest_of_something_else_is_an_artifact(fields: dict[str, Any], why: str) -> None:
    """Only a manifest whose config is an image's is an image; other configs are not even asked for."""
    document = read(manifest(**fields))
    assert isinstance(document, ArtifactDocument)
    assert why in document.why


def test_an_artifact_type_that_repeats_the_image_config_is_an_image() -> None:
    """Some tools copy the config's type into artifactType; the manifest stays what it was."""
    assert isinstance(read(manifest(artifactType=OCI_CONFIG)), ManifestDocument)


def test_hostile_types_are_quoted_in_part() -> None:
    """A media type goes into what users see, so it is cut and escaped."""
    document = read(manifest(config=config(mediaType="application/\n\x1b" + "x" * 10_000)))
    assert isinstance(document, ArtifactDocument)
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


def test_an_embedded_config_answers_at_once() -> None:
    """A config in the descriptor's data needs no request when size and digest vouch for it."""
    document = read(manifest(config=config(data=base64.b64encode(CONFIG).decode())))
    assert isinstance(document, ManifestDocument)
    assert document.embedded == CONFIG


@pytest.mark.parametrize(
    "descriptor",
    [
        pytest.param(
            config(data=base64.b64encode(b'{"architecture":"amd64","os":"linux"}').decode()), id="another text"
        ),
        pytest.param(config(data=base64.b64encode(CONFIG).decode(), size=1), id="another size"),
        pytest.param(config(data=base64.b64encode(CONFIG).decode(), size=None), id="no size"),
        pytest.param(config(data="not base64!"), id="no base64"),
        pytest.param(config(data="ä"), id="no ASCII"),
        pytest.param(config(data=""), id="empty"),
    ],
)
def test_an_embedded_config_that_nothing_vouches_for_is_fetched(descriptor: dict[str, Any]) -> None:
    """Data that is not what digest and size say is passed over, and the config is asked for as usual."""
    document = read(manifest(config=descriptor))
    assert isinstance(document, ManifestDocument)
    assert document.embedded is None


@pytest.mark.parametrize(("size", "counted"), [(None, 0), (-1, 0), (2**63 - 1, 2**63 - 1)], ids=str)
def test_absurd_sizes_stay_within_64_bits(size: int | None, counted: int) -> None:
    """Sizes are the document's word: never negative, never more than the specification's int64."""
    document = read(manifest(config=config(size=size), layers=[{"size": size}]))
    assert isinstance(document, ManifestDocument)
    assert document.config.size_bytes == counted
    assert counted <= document.size_bytes <= 2**63 - 1


@pytest.mark.parametrize(
    ("stated", "header", "fields"),
    [
        (DOCKER_LIST, OCI_INDEX, INDEX_FIELDS),
        (OCI_INDEX, DOCKER_LIST, INDEX_FIELDS),
        (DOCKER_MANIFEST, OCI_MANIFEST, MANIFEST_FIELDS),
        (OCI_MANIFEST, DOCKER_MANIFEST, MANIFEST_FIELDS),
    ],
)
def test_two_names_of_one_family_are_read_as_runtimes_read_them(
    stated: str, header: str, fields: dict[str, object]
) -> None:
    """A registry that calls a docker list an OCI index serves what nodes pull; the document's own word counts."""
    document = read_manifest(json.dumps({"mediaType": stated, **fields}).encode(), header)
    assert document.media_type == stated
    assert not isinstance(document, ArtifactDocument)
