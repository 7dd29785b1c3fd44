"""What an image config blob says of the platform it was built for; nothing else of it is read.

Source: OCI image-spec config.md, which Docker's `application/vnd.docker.container.image.v1+json` agrees with.
"""

from extender.errors import InvalidManifest
from extender.images.platform import InvalidPlatform, Platform, platform_of
from extender.images.untrusted import decode_json
from extender.images.wire import CONFIG_DECODER

_UNSTATED = frozenset({"", "unknown"})


def read_config(body: bytes) -> Platform | None:
    """The platform in an image config, or None if it states none: then it belongs to an artifact. O(bytes).

    Cosign's signatures and older attestations have a config of the usual type whose `os` and `architecture` are both
    missing, empty or `unknown`. One of the two alone is an error: the other is never guessed.

    Raises:
        InvalidManifest: no config, only one of `os` and `architecture`, or words that are no platform's.
    """
    config = decode_json(CONFIG_DECODER, body)
    os, architecture = config.os or "", config.architecture or ""
    if os.lower() in _UNSTATED and architecture.lower() in _UNSTATED:
        return None
    try:
        return platform_of(os, architecture, config.variant or "")
    except InvalidPlatform as exc:
        raise InvalidManifest(f"the image config states no platform: {exc}") from exc
