"""Any bytes at all: they are read, or refused with one of two errors."""

import base64
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.errors import InvalidManifest, UnsupportedManifest
from extender.images import manifest_wire as wire
from extender.images.digest import digest_of, is_digest
from extender.images.manifest import ArtifactDocument, Document, IndexDocument, ManifestDocument, read_manifest
from extender.images.media_type import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, SIGNED_SCHEMA1

OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
CONFIG = b'{"architecture":"arm64","os":"linux"}'
DESCRIPTOR = {"mediaType": OCI_CONFIG, "digest": digest_of(CONFIG), "size": len(CONFIG)}
PLATFORM = {"os": "linux", "architecture": "arm", "variant": "v7"}
WHOLE = (
    {"mediaType": OCI_MANIFEST, "config": {**DESCRIPTOR, "data": base64.b64encode(CONFIG).decode()}, "layers": []},
    {"mediaType": OCI_INDEX, "manifests": [{**DESCRIPTOR, "mediaType": OCI_MANIFEST, "platform": PLATFORM}]},
)

READ = (wire.Document, wire.RawDescriptor, wire.RawPlatform, wire.Annotations)
KEYS = st.sampled_from([*(name for struct in READ for name in struct.__struct_encode_fields__), "subject"])
TYPES = st.sampled_from([OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST, SIGNED_SCHEMA1, OCI_CONFIG])
DIGESTS = st.builds(lambda number: digest_of(bytes([number])), st.integers(0, 9))
WORDS = TYPES | DIGESTS | st.sampled_from(["linux", "amd64", "arm", "v7", "unknown", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text()
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=8), max_leaves=25
)
ENTRIES = st.fixed_dictionaries(
    {"mediaType": WORDS, "digest": WORDS | DIGESTS},
    optional={
        "platform": st.fixed_dictionaries({"os": WORDS, "architecture": WORDS}, optional={"variant": WORDS}),
        "size": st.integers() | st.none(),
        "annotations": st.dictionaries(KEYS, LEAVES, max_size=2) | st.none(),
        "artifactType": WORDS | st.none(),
    },
)
CONTENT_TYPES = WORDS | st.text(max_size=20)
INDEXES = st.fixed_dictionaries({"manifests": st.lists(ENTRIES, max_size=8)}, optional={"mediaType": WORDS})
BODIES = st.binary() | (DOCUMENTS | INDEXES).map(json.dumps).map(str.encode)


def read(body: bytes, content_type: str) -> Document | None:
    """The document, None if it was refused; what is said of it fits one line."""
    try:
        document = read_manifest(body, content_type)
    except (InvalidManifest, UnsupportedManifest) as refusal:
        said, document = str(refusal), None
    else:
        said = document.why if isinstance(document, ArtifactDocument) else ""
    assert said.isprintable()
    return document


@given(BODIES, CONTENT_TYPES)
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_document_or_refused(body: bytes, content_type: str) -> None:
    """No bytes whatever raise anything but our two errors, and what is read holds to its promises."""
    document = read(body, content_type)
    if isinstance(document, IndexDocument):
        platforms = [entry.platform for entry in document.entries]
        assert len(set(platforms)) == len(platforms)
        assert all(platform.os and platform.architecture for platform in platforms)
        assert all(is_digest(entry.digest) and 0 <= entry.size_bytes < 2**63 for entry in document.entries)
        assert all(is_digest(child.digest) for child in document.children)
    elif isinstance(document, ManifestDocument):
        assert is_digest(document.config.digest)
        assert 0 < document.size_bytes < 2**63


@given(st.data())
@settings(deadline=None)
def test_a_damaged_document_is_a_document_or_refused(data: st.DataObject) -> None:
    """Cutting a real document and overwriting some of its bytes raises nothing but our two errors."""
    body = bytearray(json.dumps(data.draw(st.sampled_from(WHOLE))).encode())
    for offset, byte in data.draw(
        st.dictionaries(st.integers(0, len(body) - 1), st.integers(0, 255), max_size=3)
    ).items():
        body[offset] = byte
    read(bytes(body[: data.draw(st.integers(0, len(body)))]), "")
