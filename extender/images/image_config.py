"""Reads from an image config blob what it says of where the image runs, and nothing else.

Source: OCI image-spec config.md. Docker's `application/vnd.docker.container.image.v1+json` has the same fields.
"""

import msgspec

from extender.images.platform import InvalidPlatform, Platform, has_known_words, missing_features, platform_of
from extender.images.untrusted import decode_json, document_decoder

_UNSTATED = frozenset({"", "unknown"})
# Of an operator's bundle for OLM: manifests that a program from a volume copies (operator-framework/api, bundle.md).
_DATA_LABEL = "operators.operatorframework.io.bundle.mediatype.v1"


class _ConfigLabels(msgspec.Struct, frozen=True, rename="pascal"):
    labels: dict[str, object] | None = None


class _ConfigDocument(msgspec.Struct, frozen=True):
    os: str | None = None
    architecture: str | None = None
    variant: str | None = None
    os_features: list[str | None] | None = msgspec.field(name="os.features", default=None)
    config: _ConfigLabels | None = None


_CONFIG = document_decoder(_ConfigDocument)


class ConfigClaim(msgspec.Struct, frozen=True):
    """What a config says. `platform` is None if its words are none, as in an artifact's config or for `is_artifact`.

    `doubt` is why the words say nothing of a single manifest: one sentence, empty if they do. `is_data`: the image has
    no program of its own, by its labels. `features` are those that no node has, in words; empty for nearly all.
    """

    platform: Platform | None
    doubt: str = ""
    is_artifact: bool = False
    is_data: bool = False
    features: str = ""


def read_config(body: bytes) -> ConfigClaim:
    """What an image config says of where the image runs. O(bytes).

    Nodes do not look at it when they pull a single manifest, so there it is a hint, and words that no platform has,
    such as `amd64` with the variant `v8`, say nothing. They do look where an index states no platform. A config without
    `os` is for linux, as runtimes take it. Cosign's signatures and older attestations have a config of the usual type
    whose `os` and `architecture` are both missing, empty or `unknown`.

    Raises:
        InvalidManifest: `body` is not a config.
    """
    config = decode_json(_CONFIG, body)
    os, architecture = config.os or "", config.architecture or ""
    if os.lower() in _UNSTATED and architecture.lower() in _UNSTATED:
        return ConfigClaim(None, "its config states no platform", is_artifact=True)
    is_data = config.config is not None and _DATA_LABEL in (config.config.labels or {})
    try:
        platform = platform_of(os or "linux", architecture, config.variant or "")
    except InvalidPlatform as exc:
        return ConfigClaim(None, f"its config: {exc}", is_data=is_data)
    if not has_known_words(platform):
        return ConfigClaim(platform, f"its config says {platform}, which is no known platform", is_data=is_data)
    features = missing_features(platform.os, config.os_features)
    return ConfigClaim(platform, is_data=is_data, features=features)
