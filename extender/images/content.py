"""The result of looking an image up: the platforms its bytes name, or why they are not known."""

import enum

import msgspec

from extender.images.manifest import Kind
from extender.images.platform import Platform


class Cause(enum.StrEnum):
    """Why an image's platforms are not known. The first four can resolve by themselves and make the image *pending*."""

    LOOKING_UP = "looking-up"
    MISSING = "missing"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    INVALID_REFERENCE = "invalid-reference"
    DENIED = "denied"
    REFUSED = "refused"
    NOT_ALLOWED = "not-allowed"
    ARTIFACT = "artifact"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    NEVER_PULLED = "never-pulled"


RETRYABLE = frozenset({Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE})


class Content(msgspec.Struct, frozen=True, gc=False):
    """The platforms on which the content of a digest runs, as read from a registry.

    `platforms` is empty for an artifact. `states_platforms` is true for an index with at least one entry that names its
    platform; only such an image constrains nodes when it is mounted as a volume.
    """

    kind: Kind
    platforms: frozenset[Platform]
    states_platforms: bool


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a lookup failed. `detail` is one short sentence, safe to show to the pod's author."""

    cause: Cause
    detail: str


# What the resolver returns for a reference; None means that no lookup has ended yet.
Answer = Content | Failure | None
