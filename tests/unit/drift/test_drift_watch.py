"""Which moves of tags are looked into."""

from typing import Any

import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.drift.drift_watch import DRIFT, DriftWatch
from extender.images.platform import Platform
from extender.images.reference import parse_reference
from extender.resolver.image_cache import CachedImage, MovedTag, Target
from testbed.clock import Clock
from tests.builders import index, platforms

BOTH, AMD64 = platforms("linux/amd64", "linux/arm64"), platforms("linux/amd64")


@pytest.fixture
def watch() -> DriftWatch:
    nothing: Any = None  # is asked before it runs
    return DriftWatch(nothing, nothing, nothing, events=None, clock=Clock())


def moved(tag: str, before: frozenset[Platform], after: frozenset[Platform], owner: str = "shop") -> MovedTag:
    reference = parse_reference(f"registry.example.com/app:{tag}")
    rows = [CachedImage(index(*map(str, each)), bytes(32), 0.0, owner) for each in (before, after)]
    return MovedTag(Target(reference, reference, reference.repository, tag), ANONYMOUS.id, *rows)


def test_content_for_the_same_platforms_is_no_move(watch: DriftWatch) -> None:
    """Nor is what is taken back before anybody has looked."""
    watch.note(moved("1", BOTH, BOTH))
    assert len(watch) == 0
    watch.note(moved("1", BOTH, AMD64))
    assert len(watch) == 1
    watch.note(moved("1", AMD64, BOTH))
    assert len(watch) == 0


def test_what_is_beyond_a_table_is_counted(watch: DriftWatch) -> None:
    """A tenant that moves tags all the time fills it, and no more."""
    before = DRIFT["dropped"].value
    for number in range(1_500):
        watch.note(moved(str(number), BOTH, AMD64, "loud"))
    assert len(watch) == 1_000
    assert DRIFT["dropped"].value == before + 500
