"""What an image was found to be: the platforms its bytes name, or why that is not known."""

import enum

import msgspec

from extender.images.manifest import Kind
from extender.images.platform import Platform


class Cause(enum.StrEnum):
    """Why nothing is known of an image. The first four can mend by themselves and make it *pending*."""

    LOOKING_UP = "looking-up"
    MISSING = "missing"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    INVALID_REFERENCE = "invalid-reference"
    DENIED = "denied"
    NOT_ALLOWED = "not-allowed"
    ARTIFACT = "artifact"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    NEVER_PULLED = "never-pulled"


RETRYABLE = frozenset({Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE})


class Content(msgspec.Struct, frozen=True):
    """What the bytes behind a digest can run on, learned from a registry.

    `platforms` is empty for an artifact. `states_platforms`: an index at least one of whose entries names its platform,
    which is what makes an image *volume* constrain a node.
    """

    kind: Kind
    platforms: frozenset[Platform]
    states_platforms: bool


class Failure(msgspec.Struct, frozen=True):
    """Why a lookup ended without content. `detail` is one short sentence, safe to show to the pod's author."""

    cause: Cause
    detail: str


# What the resolver answers for a reference; None: no lookup has ended yet.
Answer = Content | Failure | None
