"""The result of looking an image up: the platforms its bytes name, or why they are not known."""

import enum

import msgspec

from extender.images.manifest import Image, Kind
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
    ON_NODES = "on-nodes"
    BY_OPERATOR = "by-operator"


LOCAL = frozenset({Cause.NEVER_PULLED, Cause.ON_NODES})
"""Those for which the copies that nodes have decide: waiting teaches nothing, and the pod passes."""
RETRYABLE = frozenset({Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE})
UNANSWERED = RETRYABLE - {Cause.LOOKING_UP} | {Cause.DENIED, Cause.REFUSED, Cause.NOT_ALLOWED}
"""Those for which no registry says what the image is, so that the copies that nodes have are all there is."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """The platforms on which the content of a digest runs, as read from a registry.

    `platforms` is empty for an artifact. `states_platforms` is true for an index with at least one entry that names its
    platform; only such an image constrains nodes when it is mounted as a volume. If it is true and `platforms` is
    empty, each entry needs what no node has.
    """

    kind: Kind
    platforms: frozenset[Platform]
    states_platforms: bool


def content_of(image: Image) -> Content:
    """What an image's details say about where it runs."""
    return Content(image.kind, frozenset(entry.platform for entry in image.entries), image.states_platforms)


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a lookup failed. `detail` is one short sentence, safe to show to the pod's author."""

    cause: Cause
    detail: str


# What the resolver returns for a reference; None means that no lookup has ended yet.
Answer = Content | Failure | None


def is_by_operator(answer: Answer) -> bool:
    """Whether the operator says so, so that nobody is asked about the image."""
    if isinstance(answer, Failure):
        return answer.cause is Cause.BY_OPERATOR
    return answer is not None and answer.kind is Kind.STATED


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about an image, and where it comes from.

    `digest` is that of the index or manifest, empty if none is known. `credential` names the source of the credential
    that the registry accepted, and holds nothing of it; empty if none is known. `age_seconds` is the time since the
    registry last confirmed the answer to that credential, None if it never did. `is_fresh`: whether it needs no
    confirmation yet.
    """

    answer: Answer
    digest: str = ""
    credential: str = ""
    age_seconds: float | None = None
    is_fresh: bool = False
