"""What an image's configuration and manifest say about its start: the command, where it looks, and the layers.

Sources: OCI image-spec config.md and manifest.md; containerd's oci.WithImageConfig for what a runtime makes of them.
"""

from collections.abc import Sequence

import msgspec

from extender.images.untrusted import decode_json, document_decoder

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_LAYERS = 127  # as runtimes allow
_MOST_FOLDERS = 64  # of the search path; a program in a later one counts as missing


class LayerDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A layer as the manifest lists it."""

    media_type: str | None = None
    digest: str | None = None
    size: int | None = None


class _LayersDocument(msgspec.Struct, frozen=True):
    layers: list[LayerDescriptor | None] | None = None


class _Process(msgspec.Struct, frozen=True, rename="pascal"):
    entrypoint: list[str | None] | None = None
    cmd: list[str | None] | None = None
    env: list[str | None] | None = None
    working_dir: str | None = None


class _StartDocument(msgspec.Struct, frozen=True):
    config: _Process | None = None


class StartConfig(msgspec.Struct, frozen=True):
    """How a container of the image starts: `arguments` begin with the program, and are empty if none is named."""

    arguments: tuple[str, ...]
    search_path: tuple[str, ...]
    folder: str


_MANIFEST, _CONFIG = document_decoder(_LayersDocument), document_decoder(_StartDocument)


def read_layers(manifest: bytes) -> Sequence[LayerDescriptor]:
    """The layers, the top one first. Raises InvalidManifest."""
    layers = (decode_json(_MANIFEST, manifest).layers or [])[:_MOST_LAYERS]
    return tuple(layer or LayerDescriptor() for layer in reversed(layers))


def read_start(config: bytes) -> StartConfig:
    """How a container of an image with this configuration starts. Raises InvalidManifest."""
    process = decode_json(_CONFIG, config).config or _Process()
    environment = [(pair or "").partition("=")[::2] for pair in process.env or ()]
    path = next((value for name, value in reversed(environment) if name == "PATH"), _DEFAULT_PATH)
    return StartConfig(
        tuple(word or "" for word in (*(process.entrypoint or ()), *(process.cmd or ()))),
        tuple(path.split(":", _MOST_FOLDERS)[:_MOST_FOLDERS]),
        process.working_dir or "/",
    )
