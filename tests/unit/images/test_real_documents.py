"""Documents that real registries served: each reads as what is known to be true of it.

The index beside the documents says what a reader needs beyond the document, and the platforms it must end at. What is
needed and not among the documents is built here as the index describes it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from extender.images.image_config import read_config
from extender.images.manifest import OCI_INDEX, OCI_MANIFEST, IndexDocument, ManifestDocument, read_manifest
from extender.images.platform import Platform, parse_platform
from extender.images.reference import digest_of, matches_digest

VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors" / "manifests"
FACTS: list[dict[str, Any]] = json.loads((VECTORS / "index.json").read_text())["documents"] if VECTORS.exists() else []

Blobs = Mapping[str, bytes]

# They lie outside the repository and only some checkouts have them; test_manifest.py and test_index.py cover each rule.
pytestmark = pytest.mark.skipif(not FACTS, reason="the captured documents are not beside this checkout")


def stored() -> dict[str, bytes]:
    return {f"sha256:{facts['sha256']}": (VECTORS / facts["file"]).read_bytes() for facts in FACTS}


def platforms_behind(body: bytes, content_type: str, blobs: Blobs) -> frozenset[Platform]:
    """The platforms of a document once everything it asks for has been fetched from `blobs`."""
    document = read_manifest(body, content_type)
    if isinstance(document, IndexDocument):
        nested = (platforms_behind(blobs[child.digest], child.media_type, blobs) for child in document.children)
        return frozenset(entry.platform for entry in document.entries).union(*nested)
    if isinstance(document, ManifestDocument):
        platform = read_config(document.embedded or blobs[document.config.digest]).platform
        return frozenset({platform} if platform else ())
    return frozenset()


def asked_for(body: bytes, content_type: str) -> str | None:
    """What must be fetched after this document: config, children or nothing."""
    document = read_manifest(body, content_type)
    if isinstance(document, IndexDocument):
        return "children" if document.children else None
    return "config" if isinstance(document, ManifestDocument) and document.embedded is None else None


def image_of(config: bytes) -> bytes:
    descriptor = {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": digest_of(config),
        "size": len(config),
    }
    return json.dumps({"schemaVersion": 2, "config": descriptor, "layers": []}).encode()


def missing_blobs() -> dict[str, bytes]:
    """What the captured documents refer to and the collection leaves out, by the digest that asks for it."""
    linux, windows = (
        b'{"os":"linux","architecture":"amd64"}',
        b'{"os":"windows","architecture":"amd64","os.version":"10"}',
    )
    hello_world = (VECTORS / "06-hello-world-amd64.config.json").read_bytes()
    empty = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(b"{}"), "size": 2}
    artifact = json.dumps({"mediaType": OCI_MANIFEST, "config": empty, "layers": [empty]}).encode()
    inner = {"mediaType": OCI_MANIFEST, "digest": digest_of(artifact), "size": len(artifact)}
    loop = json.dumps(
        {"mediaType": OCI_INDEX, "artifactType": "application/example.loop", "manifests": [inner]}
    ).encode()
    return {
        "sha256:8dec8e39f2eca1ee1f1b668619023da929039a39983de4433d42d25a7b79267c": linux,
        "sha256:e2fc4e5012d16e7fe466f5291c476431beaa1f9b90a5c2125b493ed28e2aba57": image_of(hello_world),
        "sha256:2f19ce27632e6baf4ebb1b582960d68948e52902c8cfac10133da0058f1dab23": image_of(windows),
        "sha256:3a0bd0fb5ad6dd6528dc78726b3df78e980b39b379e99c5a508904ec17cfafe5": image_of(windows),
        digest_of(windows): windows,
        digest_of(artifact): artifact,
        "sha256:d69399e05204fac05b0184eef72e984538cdc9c5854a6484e8852e4357c543cb": loop,
        "sha256:0484e93c23cddf24a8400547119558312023295af241d4cd1eaf1b27145c5026": artifact,
        "sha256:741132f956e196c3858dab17e50ea977056f2f1ce1ad2900f11f4c8ff2d4203b": artifact,
    }


# Not determinable from the document alone: what its config, once fetched, adds.
BY_CONFIG = {
    "04-python-linux-amd64.manifest.json": ["linux/amd64"],
    "14-ocmirror-arm64-child.manifest.json": ["linux/amd64"],
}


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts["file"])
def test_a_captured_document_ends_at_its_true_platforms(facts: dict[str, Any]) -> None:
    """Following what each document asks for leads to the platforms that are known to be right, and no others."""
    body, expected = (VECTORS / facts["file"]).read_bytes(), facts["platforms"] or BY_CONFIG.get(facts["file"], [])
    if facts["file"].endswith(".config.json"):
        found = frozenset({read_config(body).platform})
    else:
        needs = facts["needs"] and facts["needs"].partition("+")[0]
        assert asked_for(body, facts["content_type"]) == needs
        found = frozenset(platforms_behind(body, facts["content_type"], {**missing_blobs(), **stored()}))
    assert found == frozenset(map(parse_platform, expected))


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts["file"])
def test_a_captured_document_is_told_by_its_shape(facts: dict[str, Any]) -> None:
    """Served as text/plain the documents ask for the same things, and each hashes to its digest."""
    body = (VECTORS / facts["file"]).read_bytes()
    assert matches_digest(body, f"sha256:{facts['sha256']}")
    if ".config." not in facts["file"]:
        assert asked_for(body, "text/plain") == asked_for(body, facts["content_type"])
