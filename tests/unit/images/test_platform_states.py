"""What is known of the platforms that an image claims, and what follows for where it runs."""

import pytest

from extender.images.content import Content, judged
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.platform_states import RUNNING, FalselyClaimed, PlatformState, claim_text
from tests.builders import index

AMD64, ARM64, S390X = map(parse_platform, ("linux/amd64", "linux/arm64", "linux/s390x"))
BOTH = index("linux/amd64", "linux/arm64")
LIE = FalselyClaimed(ARM64, PlatformState.REFUTED, "/usr/bin/app", "x86-64")


def test_every_state_of_a_false_claim_takes_the_platform_away() -> None:
    """And leaves the others, and what was claimed. All may be false: such an image runs nowhere, and is one still."""
    for state in set(PlatformState) - RUNNING:
        found = judged(BOTH, [FalselyClaimed(ARM64, state)], [])
        assert found.platforms == {AMD64}
        assert found.claimed == {AMD64, ARM64}
        assert (found.state_of(ARM64), found.state_of(AMD64)) == (state, PlatformState.CLAIMED)
    found = judged(BOTH, [LIE, FalselyClaimed(AMD64, PlatformState.MISSING)], [])
    assert (found.platforms, [each.platform for each in found.falsely_claimed]) == (frozenset(), [AMD64, ARM64])


def test_a_platform_is_verified_denied_or_neither() -> None:
    verified = judged(BOTH, [], [(ARM64, PlatformState.VERIFIED)])
    assert (verified.platforms, verified.verified) == (BOTH.platforms, frozenset({ARM64}))
    denied = judged(verified, [LIE], [])
    assert denied == Content(Kind.INDEX, frozenset({AMD64}), states_platforms=True, falsely_claimed=(LIE,))
    assert judged(denied, [], [(ARM64, PlatformState.CLAIMED)]) == BOTH
    assert judged(denied, [], [(ARM64, PlatformState.VERIFIED)]) == verified


def test_what_the_image_does_not_claim_is_left_out() -> None:
    """Nobody is told that an image is not what it never said it was."""
    assert judged(BOTH, [FalselyClaimed(S390X, PlatformState.MISSING)], [(S390X, PlatformState.VERIFIED)]) == BOTH


@pytest.mark.parametrize(
    ("denied", "text"),
    [
        (LIE, "claims linux/arm64, but its /usr/bin/app is for x86-64"),
        (
            FalselyClaimed(ARM64, PlatformState.CONTRADICTORY, detail="linux/amd64"),
            "claims linux/arm64, but its configuration says linux/amd64",
        ),
        (FalselyClaimed(ARM64, PlatformState.MISSING), "claims linux/arm64, but its registry has no manifest for that"),
    ],
)
def test_what_is_said_of_a_false_claim(denied: FalselyClaimed, text: str) -> None:
    assert claim_text(denied) == text
