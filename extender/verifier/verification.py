"""What a look inside an image has found out about one platform that it claims.

An index is a claim. The registry may lack what it lists, and the program that an image starts may be for another
machine. That decides: nodes choose by the index alone, and look at no platform of a single manifest.
"""

import enum

import msgspec

from extender.images.platform import Platform


class PlatformState(enum.StrEnum):
    """What is known of one platform of an image. What cannot be found out stays *claimed*."""

    CLAIMED = "claimed"
    VERIFIED = "verified"
    """The program that the image starts is for this platform."""
    MISSING = "missing"
    """The index lists it, and its registry does not have its manifest."""
    REFUTED = "refuted"
    """The program that the image starts is for another machine."""


MOST_DETAIL_CHARACTERS, MOST_PROGRAM_CHARACTERS = 160, 80
"""Of a false claim: a digest has 135."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a platform, and what it cost to find out.

    `program` is the path of the program that was looked at. `detail` is the machine that the program is for, or the
    digest of the manifest that is missing; of a platform that stays *claimed* it is why, one short sentence. Both may
    be empty. `requests` counts those for manifests, configurations and parts of layers. `read_bytes` are those of
    layers that were read, of `layer_bytes` that there are.
    """

    platform: Platform
    state: PlatformState
    program: str = ""
    detail: str = ""
    requests: int = 0
    read_bytes: int = 0
    layer_bytes: int = 0

    @property
    def lie(self) -> str:
        """What the image claims and why that is false: `claims linux/arm64, but its /app is for x86-64`; or nothing."""
        match self.state:
            case PlatformState.MISSING:
                return f"claims {self.platform}, but its registry has no manifest for that"
            case PlatformState.REFUTED:
                return f"claims {self.platform}, but its {self.program} is for {self.detail}"
            case PlatformState.CLAIMED | PlatformState.VERIFIED:
                return ""
