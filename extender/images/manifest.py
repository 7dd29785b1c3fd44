"""From manifest bytes to the platforms an image runs on, or to what else must be fetched to know.

Knows the documents a registry serves (docker list and schema2, OCI index and manifest) and what in them is nothing to
run. Fetches nothing: whoever does checks digests, sets the budget of requests, and ends loops.
Sources: OCI image-spec image-index.md, manifest.md, descriptor.md; BuildKit attestation-storage.md.
"""

import base64
import enum
from collections.abc import Iterable

import msgspec

from extender.errors import InvalidManifest, UnsupportedManifest
from extender.images import wire
from extender.images.config import read_config
from extender.images.digest import is_digest, matches_digest
from extender.images.media_type import (
    ATTESTATION,
    IMAGE_CONFIGS,
    INDEXES,
    LEGACY_CONFIGS,
    MANIFESTS,
    OCI_INDEX,
    OCI_MANIFEST,
    SCHEMA1,
    SIGNED_SCHEMA1,
    media_type_of,
)
from extender.images.platform import InvalidPlatform, Platform, platform_of
from extender.images.untrusted import decode_json, quote

# Objects in one document. The largest official indexes hold some 30 entries of up to three objects, and runtimes end
# at 127 layers, so this is a hundredfold; a 4 MiB body could hold a million and keep the event loop for a second.
_MAX_OBJECTS = 10_000
_MAX_MEDIA_TYPE = 255  # characters: two names of 127 and a slash (RFC 6838 §4.2), since media types are remembered
_MAX_SIZE_BYTES = 2**63 - 1  # sizes are int64 in the specification; ours stay so when they are summed up

_FAMILIES = (INDEXES, MANIFESTS, SCHEMA1)
_KNOWN = frozenset().union(*_FAMILIES)


class Kind(enum.StrEnum):
    """What a manifest document is."""

    INDEX = "index"
    MANIFEST = "manifest"
    ARTIFACT = "artifact"


class PlatformEntry(msgspec.Struct, frozen=True):
    """One thing to run in an image.

    `digest` names its manifest. `size_bytes` is what a node pulls (manifest, config and layers) where that manifest was
    read, and the size of the manifest alone where an index stated the platform and it was not.
    """

    platform: Platform
    digest: str
    size_bytes: int


class Skipped(msgspec.Struct, frozen=True):
    """A descriptor that is nothing to run, and why. `digest` is empty where the document states none."""

    digest: str
    why: str


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Everything learned about one digest."""

    digest: str
    media_type: str
    kind: Kind
    entries: tuple[PlatformEntry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    states_platforms: bool = False


class Descriptor(msgspec.Struct, frozen=True):
    """Bytes that must be fetched to know more. `digest` is well-formed, `size_bytes` is only the document's word."""

    media_type: str
    digest: str
    size_bytes: int


class IndexDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An index: one entry per platform it states, then what must be fetched to know, each in the document's order.

    `children` are manifests without a platform, and nested indexes. Runtimes choose by the index alone, so an entry
    counts whatever the config behind it says.
    """

    media_type: str
    entries: tuple[PlatformEntry, ...]
    children: tuple[Descriptor, ...]
    skipped: tuple[Skipped, ...]

    @property
    def states_platforms(self) -> bool:
        """Whether at least one entry names its platform."""
        return bool(self.entries)


class ManifestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A single image. `platform` is there when the config was embedded; else fetch `config` and ask `read_config`.

    `size_bytes` is what a node pulls: manifest, config and layers.
    """

    media_type: str
    config: Descriptor
    platform: Platform | None
    size_bytes: int


class ArtifactDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that is no image: a chart, a signature, a WebAssembly module. `why` is how that shows."""

    media_type: str
    why: str


Document = IndexDocument | ManifestDocument | ArtifactDocument


def read_manifest(body: bytes, content_type: str) -> Document:
    """What a manifest response says; `content_type` is its Content-Type header, empty if it had none. O(bytes).

    Raises:
        InvalidManifest: malformed, two kinds in one, or not of the kind that it or the registry says.
        UnsupportedManifest: schema1, or more objects than are looked at.
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
    """The one media type that the document, the registry and the document's shape agree on, possibly an unknown one.

    A document that differs from its Content-Type should be refused (image-spec manifest.md, CVE-2021-41190). Registries
    also serve manifests as text/plain, application/json or application/octet-stream: such a type says nothing.
    """
    stated, shape = document.media_type or "", _media_type_by_shape(document)
    if stated in _KNOWN and header in _KNOWN and stated != header:
        raise InvalidManifest(f"the document calls itself {stated}, the registry calls it {header}")
    named = next((name for name in (stated, header) if name in _KNOWN), stated)
    if not named and not shape:
        raise InvalidManifest("the document is neither an index nor a manifest")
    if len(named) > _MAX_MEDIA_TYPE:
        raise InvalidManifest(f"the document's media type has more than {_MAX_MEDIA_TYPE} characters")
    if named in _KNOWN and shape and not any(named in family and shape in family for family in _FAMILIES):
        raise InvalidManifest(f"the document is called {named} and does not look like one")
    return named or shape


def _media_type_by_shape(document: wire.Document) -> str:
    """What the fields that are there make of the document; empty if nothing. Docker's documents always state theirs."""
    shapes = {
        OCI_INDEX: document.manifests is not None,
        OCI_MANIFEST: document.config is not None or document.layers is not None,
        SIGNED_SCHEMA1: bytes(document.fs_layers) != b"null",
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
    data = _embedded(config)
    platform = read_config(data) if data is not None else None
    if data is not None and platform is None:
        return ArtifactDocument(media_type=media_type, why="its config states no platform")
    size_bytes = body_bytes + _size_bytes(config.size) + sum(_size_bytes(layer.size) for layer in document.layers or ())
    return ManifestDocument(
        media_type=media_type, config=_to_fetch(config), platform=platform, size_bytes=_size_bytes(size_bytes)
    )


def _why_artifact(artifact_type: str, config_type: str) -> str:
    """Why a manifest with these types is no image, empty if it is one. Unknown configs must not be parsed."""
    if artifact_type and artifact_type not in IMAGE_CONFIGS:
        return f"its artifact type is {quote(artifact_type)}"
    if config_type not in IMAGE_CONFIGS and config_type not in LEGACY_CONFIGS:
        return f"its config is {quote(config_type)}"
    return ""


def _embedded(config: wire.RawDescriptor) -> bytes | None:
    """The config in the descriptor's `data`, if it is what `digest` and `size` say; else it must be fetched."""
    try:
        data = base64.b64decode(config.data or "", validate=True)
    except ValueError:
        return None
    return data if data and len(data) == config.size and matches_digest(data, config.digest or "") else None


def _read_index(media_type: str, manifests: Iterable[wire.RawDescriptor]) -> IndexDocument:
    """The index, with the first entry for each platform: twins differ in compression or Windows build only."""
    entries: dict[Platform, PlatformEntry] = {}
    children: dict[str, Descriptor] = {}
    skipped = []
    for descriptor in manifests:
        found = _read_entry(descriptor)
        if isinstance(found, Descriptor):
            children.setdefault(found.digest, found)
        elif isinstance(found, Skipped):
            skipped.append(found)
        elif entries.setdefault(found.platform, found) is not found:
            skipped.append(Skipped(found.digest, f"an earlier entry is for {found.platform} too"))
    return IndexDocument(
        media_type=media_type,
        entries=tuple(entries.values()),
        children=tuple(children.values()),
        skipped=tuple(skipped),
    )


def _read_entry(descriptor: wire.RawDescriptor) -> PlatformEntry | Descriptor | Skipped:
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
    return PlatformEntry(stated, digest, _size_bytes(descriptor.size))


def _why_nothing_to_run(descriptor: wire.RawDescriptor, platform: wire.RawPlatform) -> str:
    """Why an entry is no image, as far as its descriptor tells; empty if it may be one.

    `artifactType` repeats the config's media type when the entry is a manifest (descriptor.md), so an image config's
    type says nothing; runtimes choose by platform alone, so a stated platform outweighs it.
    """
    media_type, artifact_type = descriptor.media_type or "", descriptor.artifact_type or ""
    if (descriptor.annotations and bytes(descriptor.annotations.reference_type)) or artifact_type == ATTESTATION:
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
