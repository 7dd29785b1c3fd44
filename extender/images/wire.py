"""The fields of indexes, manifests and image configs that are read. Unknown fields are ignored, any field may be null.

Sources: OCI image-spec image-index.md, manifest.md, descriptor.md, config.md; Docker's documents have the same fields.
"""

import msgspec


class RawPlatform(msgspec.Struct, frozen=True, gc=False):
    """The platform of an index entry, and the three fields of an image config that say the same."""

    os: str | None = None
    architecture: str | None = None
    variant: str | None = None


class Annotations(msgspec.Struct, frozen=True, gc=False):
    """The one annotation that changes what a descriptor is; raw and empty where it is missing."""

    reference_type: msgspec.Raw = msgspec.field(name="vnd.docker.reference.type", default=msgspec.Raw())


class RawDescriptor(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """descriptor.md; `platform` occurs in an index only, `data` is base64."""

    media_type: str | None = None
    digest: str | None = None
    size: int | None = None
    platform: RawPlatform | None = None
    annotations: Annotations | None = None
    artifact_type: str | None = None
    data: str | None = None


class Layer(msgspec.Struct, frozen=True, gc=False):
    """A layer's descriptor, of which the size is of interest."""

    size: int | None = None


class Document(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Any manifest document: `manifests` makes it an index, `config` and `layers` a manifest, `fsLayers` schema1."""

    media_type: str | None = None
    artifact_type: str | None = None
    manifests: list[RawDescriptor] | None = None
    config: RawDescriptor | None = None
    layers: list[Layer] | None = None
    fs_layers: msgspec.Raw = msgspec.Raw(b"null")


DOCUMENT_DECODER = msgspec.json.Decoder(Document)
CONFIG_DECODER = msgspec.json.Decoder(RawPlatform)
