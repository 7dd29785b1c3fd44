"""The documents of the images that a plan names: indexes, manifests and configurations with real digests."""

from functools import lru_cache
from typing import Any

import msgspec

from testbed.images import DOCKER, OCI, Bundle, Manifest, build_artifact, join_index, make_image
from testbed.packed_layers import gzipped
from tests.worlds.plan import Image

Json = dict[str, Any]

_LAYER = gzipped([])


@lru_cache(maxsize=4096)
def _single(platform: str, revision: int) -> Bundle:
    return make_image(platform, [_LAYER], OCI, Env=[f"REVISION={revision}"])


@lru_cache(maxsize=4096)
def _index(platforms: tuple[str, ...], revision: int) -> Bundle:
    return join_index([(platform, _single(platform, revision)) for platform in platforms])


@lru_cache(maxsize=1)
def _artifact() -> Bundle:
    return build_artifact()


def content_of(image: Image) -> Bundle:
    """The documents of the image. Equal platforms and revisions are equal content, whatever it is called.

    Raises ValueError: a single manifest is of one platform.
    """
    match image.form:
        case "index":
            return _index(image.platforms, image.revision)
        case "manifest":
            [platform] = image.platforms
            return _single(platform, image.revision)
        case "artifact":
            return _artifact()
        case form:
            raise ValueError(f"no image is of the form {form}")


@lru_cache(maxsize=4096)
def document(manifest: Manifest) -> Json:
    """The JSON of a manifest or an index. It may not be changed."""
    found: Json = msgspec.json.decode(manifest.body)
    return found


def is_index(manifest: Manifest) -> bool:
    """Whether it is an index."""
    return "manifests" in document(manifest)


def is_image(manifest: Manifest) -> bool:
    """Whether it is something to run: an index, or a manifest with the configuration of an image."""
    return is_index(manifest) or document(manifest)["config"]["mediaType"] in (OCI.config, DOCKER.config)


def platform_text(platform: Json) -> str:
    """`os/architecture[/variant]` of a platform object, as it is stated."""
    parts = (platform.get("os", ""), platform.get("architecture", ""), platform.get("variant", ""))
    return "/".join(part for part in parts if part)
