"""Builds small images in memory: real documents with real digests, as docker and BuildKit write them.

The caller stores or pushes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from extender.images import manifest as media_type
from extender.images.platform import Platform, parse_platform
from extender.images.reference import digest_of
from testbed.packed_layers import Layer, gzipped


class Family(msgspec.Struct, frozen=True):
    """The media types of one image format."""

    index: str
    manifest: str
    config: str
    layer: str


OCI = Family(
    media_type.OCI_INDEX,
    media_type.OCI_MANIFEST,
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.oci.image.layer.v1.tar+gzip",
)
DOCKER = Family(
    media_type.DOCKER_LIST,
    media_type.DOCKER_MANIFEST,
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)


_EMPTY = gzipped([])  # for images that are never unpacked


class Manifest(NamedTuple):
    """A manifest or index as it is stored."""

    media_type: str
    body: bytes

    @property
    def digest(self) -> str:
        """The digest by which a registry must serve it."""
        return digest_of(self.body)


class Bundle(NamedTuple):
    """All parts of an image in the order in which a registry takes them: blobs, then manifests, the outermost last."""

    blobs: tuple[bytes, ...]
    manifests: tuple[Manifest, ...]

    @property
    def digest(self) -> str:
        """The image's digest."""
        return self.manifests[-1].digest


def build_manifest(platform: str, family: Family = OCI) -> Bundle:
    """A single image for `platform` (`linux/arm/v7`), which only its config names."""
    return make_image(platform, [_EMPTY], family)


def make_image(platform: str, layers: Sequence[Layer], family: Family = OCI, /, **process: object) -> Bundle:
    """A single image of these layers, lowest first; `process` are fields of its configuration (`Entrypoint`)."""
    config = _encode(
        {
            **_platform_fields(parse_platform(platform)),
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    listed = [
        _descriptor(layer.media_type if family is OCI else family.layer, layer.body)
        | {"annotations": layer.annotations}
        for layer in layers
    ]
    manifest = _manifest(family.manifest, _descriptor(family.config, config), *listed)
    return Bundle((config, *(layer.body for layer in layers)), (manifest,))


def build_index(platforms: Sequence[str], *, attested: bool = False, family: Family = OCI) -> Bundle:
    """A multi-arch image; `attested` puts BuildKit's attestation beside each platform's manifest."""
    images = [(platform, build_manifest(platform, family)) for platform in platforms]
    return join_index(images, attested=attested, family=family)


def join_index(images: Sequence[tuple[str, Bundle]], *, attested: bool = False, family: Family = OCI) -> Bundle:
    """An index of these images, each under the platform beside it, which need not be the image's own."""
    parts = [image for _, image in images]
    entries = [
        _descriptor(*image.manifests[-1]) | {"platform": _platform_fields(parse_platform(platform))}
        for platform, image in images
    ]
    if attested:
        attestations = [_attestation(part.manifests[-1]) for part in parts]
        entries += [_attestation_entry(*pair) for pair in zip(parts, attestations, strict=True)]
        parts += attestations
    index = Manifest(family.index, _encode({"schemaVersion": 2, "mediaType": family.index, "manifests": entries}))
    return _join(parts, index)


def build_artifact() -> Bundle:
    """A Helm chart: a manifest without anything to run."""
    config = _encode({"name": "shop", "version": "1.0.0", "apiVersion": "v2"})
    manifest = _manifest(
        OCI.manifest,
        _descriptor("application/vnd.cncf.helm.config.v1+json", config),
        _descriptor("application/vnd.cncf.helm.chart.content.v1.tar+gzip", _EMPTY.body),
    )
    return Bundle((config, _EMPTY.body), (manifest,))


def _attestation(subject: Manifest) -> Bundle:
    """BuildKit's attestation for a manifest it built (moby/buildkit: docs/attestations/attestation-storage.md)."""
    statement = _encode({"_type": "https://in-toto.io/Statement/v0.1", "subject": [{"digest": subject.digest}]})
    config = _encode({"architecture": "unknown", "os": "unknown", "config": {}})
    layer = _descriptor("application/vnd.in-toto+json", statement)
    return Bundle((config, statement), (_manifest(OCI.manifest, _descriptor(OCI.config, config), layer),))


def _attestation_entry(subject: Bundle, attestation: Bundle) -> dict[str, object]:
    return _descriptor(*attestation.manifests[-1]) | {
        "platform": {"architecture": "unknown", "os": "unknown"},
        "annotations": {
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": subject.digest,
        },
    }


def _manifest(name: str, config: dict[str, object], *layers: dict[str, object]) -> Manifest:
    return Manifest(name, _encode({"schemaVersion": 2, "mediaType": name, "config": config, "layers": layers}))


def _join(parts: Sequence[Bundle], outermost: Manifest) -> Bundle:
    """Everything in `parts` without repeats, and the manifest that refers to it."""
    blobs = dict.fromkeys(blob for part in parts for blob in part.blobs)
    manifests = dict.fromkeys(manifest for part in parts for manifest in part.manifests)
    return Bundle(tuple(blobs), (*manifests, outermost))


def _descriptor(name: str, body: bytes) -> dict[str, object]:
    return {"mediaType": name, "digest": digest_of(body), "size": len(body)}


def _platform_fields(platform: Platform) -> dict[str, str]:
    fields = {"architecture": platform.architecture, "os": platform.os}
    return fields | {"variant": platform.variant} if platform.variant else fields


def _encode(document: dict[str, object]) -> bytes:
    return msgspec.json.encode(document)
