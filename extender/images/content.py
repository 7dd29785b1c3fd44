"""The result of looking an image up: the platforms its bytes name, or why they are not known."""

import enum
from collections.abc import Iterable

import msgspec

from extender.images.manifest import Image, Kind
from extender.images.platform import Platform
from extender.images.platform_states import FalselyClaimed, PlatformState


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


LOCAL = frozenset({Cause.NEVER_PULLED, Cause.ON_NODES})
"""Those for which the copies that nodes have decide: waiting teaches nothing, and the pod passes."""
RETRYABLE = frozenset({Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE})


class Content(msgspec.Struct, frozen=True, gc=False):
    """The platforms on which the content of a digest runs, as read from a registry.

    `platforms` is empty for an artifact. `states_platforms` is true for an index with at least one entry that names its
    platform; only such an image constrains nodes when it is mounted as a volume.

    `verified` are those of `platforms` for which its program is. `falsely_claimed` are those that it claims and does
    not run on; they are not among `platforms`, which may have none left.
    """

    kind: Kind
    platforms: frozenset[Platform]
    states_platforms: bool
    verified: frozenset[Platform] = frozenset()
    falsely_claimed: tuple[FalselyClaimed, ...] = ()

    @property
    def claimed(self) -> frozenset[Platform]:
        """All platforms that the image claims, whether it runs on them or not."""
        if not self.falsely_claimed:
            return self.platforms
        return self.platforms.union(each.platform for each in self.falsely_claimed)

    def state_of(self, platform: Platform) -> PlatformState:
        """What is known of a platform that the image claims."""
        state = next((each.state for each in self.falsely_claimed if each.platform == platform), None)
        return state or (PlatformState.VERIFIED if platform in self.verified else PlatformState.CLAIMED)


def judged(
    content: Content, states: Iterable[FalselyClaimed], running: Iterable[tuple[Platform, PlatformState]]
) -> Content:
    """The content with other states of some of the platforms that it claims; others are left out. O(platforms).

    `states` are of platforms on which it does not run, `running` those of others: *claimed* or *verified*.
    """
    claimed = content.claimed
    false_claims = {each.platform: each for each in content.falsely_claimed}
    verified = set(content.verified)
    for platform, state in running:
        false_claims.pop(platform, None)
        verified.discard(platform)
        if state is PlatformState.VERIFIED:
            verified.add(platform)
    for each in states:
        if each.platform in claimed:
            false_claims[each.platform] = each
    platforms = frozenset(platform for platform in claimed if platform not in false_claims)
    return Content(
        content.kind,
        content.platforms if platforms == content.platforms else platforms,
        content.states_platforms,
        platforms.intersection(verified),
        tuple(false_claims[platform] for platform in sorted(false_claims)),
    )


def content_of(image: Image) -> Content:
    """What an image's details say about where it runs."""
    return Content(image.kind, frozenset(entry.platform for entry in image.entries), image.states_platforms)


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a lookup failed. `detail` is one short sentence, safe to show to the pod's author."""

    cause: Cause
    detail: str


# What the resolver returns for a reference; None means that no lookup has ended yet.
Answer = Content | Failure | None


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
