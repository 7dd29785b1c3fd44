"""What a platform that an image claims is known to be. Facts of one digest: they decide nothing about nodes.

An index is a claim. The registry may lack what it lists, its parts may contradict each other, and the program that an
image starts may be for another machine.
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
    """The index lists it, and no place that has the image's repository serves its manifest."""
    CONTRADICTORY = "contradictory"
    """The image's configuration names another platform than the index."""
    REFUTED = "refuted"
    """The program that the image starts is for another machine."""


RUNNING = frozenset({PlatformState.CLAIMED, PlatformState.VERIFIED})
"""The states in which an image runs on the platform; in all others it does not."""

MOST_DETAIL_CHARACTERS, MOST_PROGRAM_CHARACTERS = 160, 80
"""Of a `FalselyClaimed`: a digest has 135, and a platform of three long words 98."""


class FalselyClaimed(msgspec.Struct, frozen=True, gc=False):
    """A platform that an image claims and on which it does not run. `state` is none of `RUNNING`.

    `program` is the path of the program that was looked at. `detail` is the machine that the program is for, the
    platform that the configuration names, or the digest of the manifest that is missing. Both may be empty.
    """

    platform: Platform
    state: PlatformState
    program: str = ""
    detail: str = ""


def claim_text(claim: FalselyClaimed) -> str:
    """What the image claims, and why that is false: `claims linux/arm64, but its /app is for x86-64`."""
    return f"claims {claim.platform}, but {_why(claim)}"


def _why(claim: FalselyClaimed) -> str:
    match claim.state:
        case PlatformState.MISSING:
            return "its registry has no manifest for that"
        case PlatformState.CONTRADICTORY:
            return f"its configuration says {claim.detail}"
        case PlatformState.REFUTED:
            return f"its {claim.program} is for {claim.detail}"
        case PlatformState.CLAIMED | PlatformState.VERIFIED:
            return "nothing is known against that"
