"""Reads the platform from an image config blob, and nothing else.

Source: OCI image-spec config.md. Docker's `application/vnd.docker.container.image.v1+json` has the same fields.
"""

from extender.errors import InvalidManifest
from extender.images.manifest_wire import CONFIG_DECODER
from extender.images.platform import InvalidPlatform, Platform, platform_of
from extender.images.untrusted import decode_json

_UNSTATED = frozenset({"", "unknown"})


def read_config(body: bytes) -> Platform | None:
    """The platform in an image config; None if it states none, in which case it belongs to an artifact. O(bytes).

    Cosign's signatures and older attestations have a config of the usual type whose `os` and `architecture` are both
    missing, empty or `unknown`. A config with only one of the two is an error, as the other is never guessed.

    Raises:
        InvalidManifest: `body` is not a config, has only one of `os` and `architecture`, or has invalid values in them.
    """
    config = decode_json(CONFIG_DECODER, body)
    os, architecture = config.os or "", config.architecture or ""
    if os.lower() in _UNSTATED and architecture.lower() in _UNSTATED:
        return None
    try:
        return platform_of(os, architecture, config.variant or "")
    except InvalidPlatform as exc:
        raise InvalidManifest(f"the image config states no platform: {exc}") from exc
