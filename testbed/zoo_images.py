"""Images made of real layers, with a configuration of the test's choice: honest ones, and liars."""

from collections.abc import Sequence

import msgspec

from extender.images.manifest import OCI_INDEX, OCI_MANIFEST
from extender.images.platform import Platform, parse_platform
from extender.images.reference import digest_of
from testbed.images import Bundle, Manifest
from testbed.packed_layers import Layer

_CONFIG = "application/vnd.oci.image.config.v1+json"


def make_image(platform: str, layers: Sequence[Layer], **process: object) -> Bundle:
    """A single image for a platform; `process` are fields of its configuration (`Entrypoint`). Lowest layer first."""
    config = msgspec.json.encode(
        _fields(parse_platform(platform))
        | {"config": process, "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}}
    )
    listed = [
        {
            "mediaType": layer.media_type,
            "digest": digest_of(layer.body),
            "size": len(layer.body),
            "annotations": layer.annotations,
        }
        for layer in layers
    ]
    described = {"mediaType": _CONFIG, "digest": digest_of(config), "size": len(config)}
    body = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": listed}
    return Bundle((config, *(layer.body for layer in layers)), (Manifest(OCI_MANIFEST, msgspec.json.encode(body)),))


def make_index(images: Sequence[tuple[str, Bundle]]) -> Bundle:
    """An index that lists each image under the platform beside it."""
    entries = [
        {
            "mediaType": OCI_MANIFEST,
            "digest": image.digest,
            "size": len(image.manifests[-1].body),
            "platform": _fields(parse_platform(platform)),
        }
        for platform, image in images
    ]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    blobs = dict.fromkeys(blob for _, image in images for blob in image.blobs)
    manifests = dict.fromkeys(manifest for _, image in images for manifest in image.manifests)
    return Bundle(tuple(blobs), (*manifests, Manifest(OCI_INDEX, msgspec.json.encode(index))))


def _fields(platform: Platform) -> dict[str, object]:
    fields: dict[str, object] = {"os": platform.os, "architecture": platform.architecture}
    return fields | ({"variant": platform.variant} if platform.variant else {})
