"""Reads from manifest bytes the platforms an image runs on, or which descriptors must be fetched to know them.

Reads the documents a registry serves (docker list and schema2, OCI index and manifest) and recognises the entries in
them that cannot be run. Fetches nothing: the caller checks digests, limits the number of requests and ends loops.
Media types are exact and case-sensitive.
Sources: OCI image-spec image-index.md, manifest.md, descriptor.md, media-types.md; distribution manifest-v2-2.md;
BuildKit attestation-storage.md.
"""

import base64
import enum
from collections.abc import Iterable

import msgspec

from extender.errors import InvalidManifest, UnsupportedManifest
from extender.images import manifest_wire as wire
from extender.images.platform import InvalidPlatform, Platform, missing_features, platform_of
from extender.images.reference import is_digest, matches_digest
from extender.images.untrusted import decode_json, quote

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SIGNED_SCHEMA1 = "application/vnd.docker.distribution.manifest.v1+prettyjws"

INDEXES = frozenset({DOCKER_LIST, OCI_INDEX})
MANIFESTS = frozenset({DOCKER_MANIFEST, OCI_MANIFEST})
SCHEMA1 = frozenset({"application/vnd.docker.distribution.manifest.v1+json", SIGNED_SCHEMA1})

# The Accept header of every manifest request. If a docker list is not accepted, distribution returns its linux/amd64
# child instead, which makes a multi-arch image look like an amd64 one (registry/handlers/manifests.go).
ACCEPTED = (DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST)

IMAGE_CONFIGS = frozenset(
    {
        "application/vnd.docker.container.image.v1+json",
        "application/vnd.oci.image.config.v1+json",
    }
)
# Old registries replaced the config type of real images by these (distribution/distribution#1621); Docker accepts them.
LEGACY_CONFIGS = frozenset({"", "application/octet-stream", "application/json", "text/html"})
ATTESTATION = "application/vnd.docker.attestation.manifest.v1+json"
_REFERENCE_TYPE = "vnd.docker.reference.type"  # the annotation of attestations


def media_type_of(content_type: str) -> str:
    """The media type in a Content-Type header, without its parameters; empty for an empty header."""
    return content_type.partition(";")[0].strip()


# JSON objects in one document. The largest official indexes have some 30 entries of up to three objects, and runtimes
# allow at most 127 layers, so this is about a hundred times as many. A 4 MiB body could hold a million objects and
# block the event loop for a second.
_MAX_OBJECTS = 10_000
_MAX_MEDIA_TYPE = 255  # characters: two names of 127 and a slash (RFC 6838 §4.2); bounded because it is cached
_MAX_SIZE_BYTES = 2**63 - 1  # sizes are int64 in the specification; our sums stay within that

_FAMILIES = (INDEXES, MANIFESTS, SCHEMA1)
_KNOWN = frozenset().union(*_FAMILIES)


class Kind(enum.StrEnum):
    """The kinds of manifest document, and what is said of an image without one."""

    INDEX = "index"
    MANIFEST = "manifest"
    DATA = "data"
    """A single image without a program of its own: what runs in its containers comes from a volume."""
    ARTIFACT = "artifact"
    STATED = "stated"
    """The operator says where it runs, and no registry is asked."""


class PlatformEntry(msgspec.Struct, frozen=True):
    """An image manifest that runs on one platform.

    `digest` is the manifest's. `size_bytes` is what a node pulls (manifest, config and layers) if the manifest was
    read. It is the size of the manifest alone if an index stated the platform and the manifest was not read.
    """

    platform: Platform
    digest: str
    size_bytes: int


class Skipped(msgspec.Struct, frozen=True):
    """A descriptor that cannot be run, and why. `digest` is empty if the document states no valid one."""

    digest: str
    why: str


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read about one digest.

    Without `entries`, an image of kind *manifest* says nothing that can be known of where it runs. `is_partial`: its
    registry has trouble now with what may have further entries.
    """

    digest: str
    media_type: str
    kind: Kind
    entries: tuple[PlatformEntry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    states_platforms: bool = False
    is_partial: bool = False


class Descriptor(msgspec.Struct, frozen=True):
    """Content that must be fetched. `digest` is well-formed; `size_bytes` is what the document claims, unverified."""

    media_type: str
    digest: str
    size_bytes: int


class IndexDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An index: one entry for each platform it states, and the children to fetch, each in the document's order.

    `children` are manifests without a platform, and nested indexes. Runtimes choose by the index alone, so the platform
    of an entry holds whatever the config of its manifest says.
    """

    media_type: str
    entries: tuple[PlatformEntry, ...]
    children: tuple[Descriptor, ...]
    skipped: tuple[Skipped, ...]
    states_platforms: bool
    """Whether an entry names its platform, or all that may be images need features that no node has."""


class ManifestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A single image. `size_bytes` is what a node pulls: manifest, config and layers.

    `embedded` has the config's bytes if they came with the manifest. Otherwise fetch `config`.
    """

    media_type: str
    config: Descriptor
    embedded: bytes | None
    size_bytes: int


class ArtifactDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that is not an image, such as a chart, signature or WebAssembly module. `why` says what shows it."""

    media_type: str
    why: str


Document = IndexDocument | ManifestDocument | ArtifactDocument


def read_manifest(body: bytes, content_type: str) -> Document:
    """The document in a manifest response; `content_type` is the Content-Type header, empty if missing. O(bytes).

    Raises:
        InvalidManifest: malformed, two kinds in one, or not of the kind that it or the registry states.
        UnsupportedManifest: schema1, or more than 10,000 objects.
    """
    if body.count(b"{") > _MAX_OBJECTS:
        raise UnsupportedManifest(f"the document holds more than {_MAX_OBJECTS} objects")
    document = decode_json(wire.DOCUMENT_DECODER, body)
    media_type = _media_type(document, media_type_of(content_type))
    if media_type in INDEXES:
        return _read_index(media_type, document.manifests or ())
    if media_type in MANIFESTS:
        return _read_single(media_type, document, len(body))
    if media_type in SCHEMA1:
        raise UnsupportedManifest("the manifest is schema1, which container runtimes no longer pull")
    return ArtifactDocument(media_type=media_type, why=f"its media type is {quote(media_type)}")


def _media_type(document: wire.Document, header: str) -> str:
    """The media type on which the document, the Content-Type header and the document's fields agree; may be unknown.

    A document that differs from its Content-Type should be refused (image-spec manifest.md, CVE-2021-41190). Runtimes
    pull it as long as both name one family, such as a docker list and an OCI index, and so does this. Registries also
    serve manifests as text/plain, application/json or application/octet-stream; such a Content-Type is ignored.
    """
    stated, shape = document.media_type or "", _media_type_by_shape(document)
    if stated in _KNOWN and header in _KNOWN and not _are_one_family(stated, header):
        raise InvalidManifest(f"the document calls itself {stated}, the registry calls it {header}")
    named = next((name for name in (stated, header) if name in _KNOWN), stated)
    if not named and not shape:
        raise InvalidManifest("the document is neither an index nor a manifest")
    if len(named) > _MAX_MEDIA_TYPE:
        raise InvalidManifest(f"the document's media type has more than {_MAX_MEDIA_TYPE} characters")
    if named in _KNOWN and shape and not _are_one_family(named, shape):
        raise InvalidManifest(f"the document is called {named} and does not look like one")
    return named or shape


def _are_one_family(one: str, other: str) -> bool:
    """Whether both media types are of indexes, of manifests or of schema1, whose documents have the same fields."""
    return any(one in family and other in family for family in _FAMILIES)


def _media_type_by_shape(document: wire.Document) -> str:
    """The media type that the present fields imply; empty if none. Docker's documents always state their media type."""
    shapes = {
        OCI_INDEX: document.manifests is not None,
        OCI_MANIFEST: document.config is not None or document.layers is not None,
        SIGNED_SCHEMA1: document.fs_layers is not None,
    }
    found = [media_type for media_type, there in shapes.items() if there]
    if len(found) > 1:
        raise InvalidManifest("the document is two in one: it has the fields of " + " and ".join(found))
    return found[0] if found else ""


def _read_single(media_type: str, document: wire.Document, body_bytes: int) -> ManifestDocument | ArtifactDocument:
    config = document.config
    if config is None:
        raise InvalidManifest("the manifest has no config")
    why = _why_artifact(document.artifact_type or "", config.media_type or "")
    if why:
        return ArtifactDocument(media_type=media_type, why=why)
    if not is_digest(config.digest or ""):
        raise InvalidManifest("the manifest's config has no valid digest")
    layer_bytes = sum(_size_bytes(layer.size) for layer in document.layers or () if layer)
    size_bytes = body_bytes + _size_bytes(config.size) + layer_bytes
    return ManifestDocument(
        media_type=media_type, config=_to_fetch(config), embedded=_embedded(config), size_bytes=_size_bytes(size_bytes)
    )


def _why_artifact(artifact_type: str, config_type: str) -> str:
    """Why a manifest with these types is not an image; empty if it is one. Unknown configs must not be parsed."""
    if artifact_type and artifact_type not in IMAGE_CONFIGS:
        return f"its artifact type is {quote(artifact_type)}"
    if config_type not in IMAGE_CONFIGS and config_type not in LEGACY_CONFIGS:
        return f"its config is {quote(config_type)}"
    return ""


def _embedded(config: wire.RawDescriptor) -> bytes | None:
    """The config in the descriptor's `data` if it matches `digest` and `size`; None if it must be fetched."""
    try:
        data = base64.b64decode(config.data or "", validate=True)
    except ValueError:
        return None
    return data if data and len(data) == config.size and matches_digest(data, config.digest or "") else None


def _read_index(media_type: str, manifests: Iterable[wire.RawDescriptor | None]) -> IndexDocument:
    """The index with the first entry for each platform; further ones differ only in compression or Windows build."""
    entries: dict[Platform, PlatformEntry] = {}
    children: dict[str, Descriptor] = {}
    skipped = []
    needs_features = False
    for descriptor in manifests:
        found = _read_entry(descriptor or wire.RawDescriptor())
        if isinstance(found, Descriptor):
            children.setdefault(found.digest, found)
        elif isinstance(found, Skipped):
            skipped.append(found)
        elif isinstance(found, _MissingFeatures):
            skipped.append(Skipped(found.digest, f"no node has its {found.features}"))
            needs_features = True
        elif entries.setdefault(found.platform, found) is not found:
            skipped.append(Skipped(found.digest, f"an earlier entry is for {found.platform} too"))
    return IndexDocument(
        media_type=media_type,
        entries=tuple(entries.values()),
        children=tuple(children.values()),
        skipped=tuple(skipped),
        states_platforms=bool(entries) or (needs_features and not children),
    )


class _MissingFeatures(msgspec.Struct, frozen=True):
    """An entry that states a platform, and features that no node has."""

    digest: str
    features: str


def _read_entry(descriptor: wire.RawDescriptor) -> PlatformEntry | Descriptor | Skipped | _MissingFeatures:
    digest, platform = descriptor.digest or "", descriptor.platform or wire.RawPlatform()
    if not is_digest(digest):
        return Skipped("", "its digest is missing or not valid")
    why = _why_nothing_to_run(descriptor, platform)
    if why:
        return Skipped(digest, why)
    if not (platform.os and platform.architecture):
        return _to_fetch(descriptor)
    try:
        stated = platform_of(platform.os, platform.architecture, platform.variant or "")
    except InvalidPlatform as exc:
        return Skipped(digest, str(exc))
    if missing := missing_features(stated.os, platform.os_features):
        return _MissingFeatures(digest, missing)
    return PlatformEntry(stated, digest, _size_bytes(descriptor.size))


def _why_nothing_to_run(descriptor: wire.RawDescriptor, platform: wire.RawPlatform) -> str:
    """Why an entry is not an image according to its descriptor; empty if it may be one.

    `artifactType` repeats the config's media type if the entry is a manifest (descriptor.md), so the media type of an
    image config there does not mark an artifact. Runtimes choose by platform alone, so an entry that states a platform
    counts whatever its `artifactType` is.
    """
    media_type, artifact_type = descriptor.media_type or "", descriptor.artifact_type or ""
    if _REFERENCE_TYPE in (descriptor.annotations or {}) or artifact_type == ATTESTATION:
        return "an attestation"
    if "unknown" in ((platform.os or "").lower(), (platform.architecture or "").lower()):
        return "its platform is unknown"
    if media_type not in INDEXES and media_type not in MANIFESTS:
        return f"its media type is {quote(media_type)}"
    if artifact_type and artifact_type not in IMAGE_CONFIGS and media_type in MANIFESTS and not platform.architecture:
        return f"its artifact type is {quote(artifact_type)}"
    return ""


def _to_fetch(descriptor: wire.RawDescriptor) -> Descriptor:
    return Descriptor(descriptor.media_type or "", descriptor.digest or "", _size_bytes(descriptor.size))


def _size_bytes(size: int | None) -> int:
    return min(max(size or 0, 0), _MAX_SIZE_BYTES)
