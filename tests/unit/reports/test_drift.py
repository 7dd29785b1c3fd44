"""Whom a change of an image concerns."""

import pytest

from extender.drift.moved_tags import DriftChange, drift_text, gained_platforms, lost_platform
from extender.images.content import Cause
from extender.images.platform import Compatibility, parse_platform
from extender.placement.facts import Anywhere, ImageFact, Unknown
from tests.builders import built_for

AMD, ARM = parse_platform("linux/amd64"), parse_platform("linux/arm64")
BOTH, ONLY_AMD, ONLY_ARM = built_for("linux/amd64", "linux/arm64"), built_for("linux/amd64"), built_for("linux/arm64")
UNKNOWN = Unknown(Cause.DENIED, "x")
NONE = Compatibility()


@pytest.mark.parametrize(
    ("before", "after", "node", "is_lost"),
    [
        (BOTH, ONLY_AMD, ARM, True),
        (BOTH, ONLY_AMD, AMD, False),
        (BOTH, ONLY_AMD, None, False),
        (ONLY_AMD, BOTH, ARM, False),
        (ONLY_AMD, ONLY_ARM, ARM, False),
        (BOTH, UNKNOWN, ARM, False),
        (BOTH, Anywhere(), ARM, False),
    ],
    ids=["lost", "of another node", "no node yet", "never ran there", "gained", "not known", "constrains no more"],
)
def test_a_platform_is_lost_to_pods_that_run_there(
    before: ImageFact, after: ImageFact, node: None, *, is_lost: bool
) -> None:
    assert lost_platform(before, after, node, NONE) == (node if is_lost else None)


@pytest.mark.parametrize(
    ("before", "after", "gained"),
    [
        ([ONLY_AMD], [BOTH], {ARM}),
        ([ONLY_AMD, BOTH], [BOTH, BOTH], {ARM}),
        ([ONLY_AMD, ONLY_AMD], [BOTH, ONLY_AMD], set()),
        ([ONLY_AMD, UNKNOWN], [BOTH, UNKNOWN], set()),
        ([BOTH], [ONLY_AMD], set()),
    ],
    ids=["alone", "the last one", "another is in the way", "another is not known", "lost"],
)
def test_a_platform_is_gained_when_the_last_image_has_it(
    before: list[ImageFact], after: list[ImageFact], gained: set[object]
) -> None:
    assert gained_platforms(before, after, [AMD, ARM], NONE) == gained
    assert gained_platforms(before, after, [AMD], NONE) == set()


def test_the_remedy_is_in_the_text() -> None:
    """What is lost with the digest that had it; what is gained with no digest."""
    lost = drift_text(DriftChange.LOST, "r.example.com/app:1", [ARM], "r.example.com/app@sha256:ab")
    assert "has lost linux/arm64" in lost
    assert "the last digest that had it is r.example.com/app@sha256:ab" in lost.lower()
    gained = drift_text(DriftChange.GAINED, "r.example.com/app:1", [ARM], "r.example.com/app@sha256:ab")
    assert "runs on linux/arm64 now" in gained
    assert "sha256" not in gained
