"""The fields of indexes, manifests and image configs that we read. Unknown fields are ignored; anything may be null.

Sources: OCI image-spec image-index.md, manifest.md, descriptor.md, config.md; Docker's documents have the same fields.
"""

import msgspec

from extender.images.untrusted import document_decoder


class RawPlatform(msgspec.Struct, frozen=True, gc=False):
    """The platform of an index entry."""

    os: str | None = None
    architecture: str | None = None
    variant: str | None = None
    os_features: list[str | None] | None = msgspec.field(name="os.features", default=None)


class RawDescriptor(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A descriptor (descriptor.md); `platform` occurs only in an index, `data` is base64."""

    media_type: str | None = None
    digest: str | None = None
    size: int | None = None
    platform: RawPlatform | None = None
    annotations: dict[str, object] | None = None
    artifact_type: str | None = None
    data: str | None = None


class Layer(msgspec.Struct, frozen=True, gc=False):
    """A layer's descriptor, of which only the size is read."""

    size: int | None = None


class Document(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Any manifest document. `manifests` marks an index, `config` or `layers` a manifest, and `fsLayers` schema1."""

    media_type: str | None = None
    artifact_type: str | None = None
    manifests: list[RawDescriptor | None] | None = None
    config: RawDescriptor | None = None
    layers: list[Layer | None] | None = None
    fs_layers: object = None


DOCUMENT_DECODER = document_decoder(Document)
