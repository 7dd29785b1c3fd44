"""Places that failed are left alone for a while, and one asker at a time finds out whether they are well again."""

import pytest

from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.registry.endpoint_breaker import Rests
from testbed.clock import Clock

DOWN = RegistryUnavailable("down")
MIRROR = "https://mirror.example/v2"


@pytest.fixture
def clock() -> Clock:
    """The time by which rests end."""
    return Clock()


@pytest.fixture
def rests(clock: Clock) -> Rests:
    """Nobody rests; rests do not vary."""
    return Rests(probe_seconds=5, clock=clock, random=lambda: 0.0)


def fail(rests: Rests, clock: Clock, error: RegistryThrottled | RegistryUnavailable = DOWN) -> None:
    """The mirror fails one who has asked just now."""
    clock.advance(0.001)
    rests.begin(MIRROR, error, clock())


def test_place_that_never_failed_is_asked(rests: Rests) -> None:
    """As is one that has been well again."""
    assert rests.standing(MIRROR) is None
    rests.end(MIRROR)


@pytest.mark.parametrize(("strikes", "seconds"), [(1, 10), (2, 20), (3, 40), (6, 300), (5000, 300)], ids=str)
def test_rests_grow_with_failures_in_a_row(rests: Rests, clock: Clock, strikes: int, seconds: float) -> None:
    """Ten seconds, doubling up to five minutes."""
    for _ in range(strikes):
        clock.advance(1000)
        assert rests.standing(MIRROR) is None
        fail(rests, clock)
    clock.advance(seconds - 0.1)
    assert isinstance(rests.standing(MIRROR), RegistryUnavailable)
    clock.advance(0.2)
    assert rests.standing(MIRROR) is None


def test_throttled_place_rests_as_long_as_it_said(rests: Rests, clock: Clock) -> None:
    """And those who would ask are told how long that is still."""
    fail(rests, clock, RegistryThrottled("later", 90.0))
    clock.advance(30)
    standing = rests.standing(MIRROR)
    assert isinstance(standing, RegistryThrottled)
    assert standing.retry_after_seconds == pytest.approx(60)


def test_throttled_place_that_named_no_time(rests: Rests, clock: Clock) -> None:
    """It rests as one that is down."""
    fail(rests, clock, RegistryThrottled("later", None))
    clock.advance(10)
    assert rests.standing(MIRROR) is None


def test_one_asker_goes_first(rests: Rests, clock: Clock) -> None:
    """The others find the place at rest until that one is back, or has been away too long."""
    fail(rests, clock)
    clock.advance(10)
    assert rests.standing(MIRROR) is None
    assert rests.standing(MIRROR) is not None
    clock.advance(5)
    assert rests.standing(MIRROR) is None
    rests.end(MIRROR)
    assert [rests.standing(MIRROR) for _ in range(3)] == [None] * 3


def test_those_who_asked_before_it_fell_ill_do_not_lengthen_the_rest(rests: Rests, clock: Clock) -> None:
    """A burst of failures is one failure."""
    asked_at = clock()
    fail(rests, clock)
    for _ in range(5):
        rests.begin(MIRROR, DOWN, asked_at)
    clock.advance(10)
    assert rests.standing(MIRROR) is None


def test_rests_vary_by_chance(clock: Clock) -> None:
    """A failure's by up to a fifth less, a stated time by up to a fifth more: never earlier than the place said."""
    rests = Rests(probe_seconds=5, clock=clock, random=lambda: 0.5)
    fail(rests, clock)
    clock.advance(9)
    assert rests.standing(MIRROR) is None
    rests.end(MIRROR)
    fail(rests, clock, RegistryThrottled("later", 100.0))
    clock.advance(109)
    assert rests.standing(MIRROR) is not None
    clock.advance(1)
    assert rests.standing(MIRROR) is None


def test_memory_is_bounded(rests: Rests, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place that failed first is forgotten first."""
    monkeypatch.setattr("extender.registry.endpoint_breaker._REMEMBERED", 2)
    for place in ("a", "b", "c"):
        rests.begin(place, DOWN, clock())
    assert [rests.standing(place) is None for place in ("a", "b", "c")] == [True, False, False]
