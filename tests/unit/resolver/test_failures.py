"""How long a failure holds; `test_failing_lookups` has what a caller sees of it."""

import pytest

from extender.credentials.keyring import CredentialId
from extender.images.content import Cause, Failure
from extender.resolver.failures import Failures, hold_seconds
from extender.resolver.image_cache import References, Target
from testbed.clock import Clock

A = (CredentialId("a"),)


def failure(cause: Cause) -> Failure:
    return Failure(cause, "why")


UNAVAILABLE, MISSING = failure(Cause.UNAVAILABLE), failure(Cause.MISSING)


@pytest.fixture
def target() -> Target:
    found = References(1).target_of("ghcr.io/team/app:1")
    assert isinstance(found, Target)
    return found


@pytest.mark.parametrize("in_a_row", [1, 2, 5000])
def test_a_time_that_is_known_does_not_add_up(in_a_row: int) -> None:
    """Such as for our own shortage: no host has failed, and the images are wanted once there is a fetcher again."""
    assert hold_seconds(UNAVAILABLE, in_a_row, lambda: 0.0, 2) == 2


@pytest.mark.parametrize(("in_a_row", "seconds"), [(1, 5), (12, 5), (13, 60), (5000, 60)])
def test_missing_is_asked_for_soon_at_first(in_a_row: int, seconds: float) -> None:
    """A tag that is pushed after its pod is found while the pod is still pending; one that stays away costs little."""
    assert hold_seconds(MISSING, in_a_row, lambda: 0.0) == seconds


def test_jitter_never_comes_back_earlier_than_the_registry_said() -> None:
    """Replicas that were throttled together come back apart, each after the time it was told."""
    assert hold_seconds(failure(Cause.THROTTLED), 1, lambda: 0.0, 20) == 20
    assert hold_seconds(failure(Cause.THROTTLED), 1, lambda: 0.5, 20) == pytest.approx(21)


def test_jitter_shortens_a_backoff_by_a_fifth_at_most() -> None:
    """What failed together does not come back together."""
    assert hold_seconds(UNAVAILABLE, 1, lambda: 0.999) == pytest.approx(8, abs=0.01)
    assert hold_seconds(UNAVAILABLE, 99, lambda: 0.5) == 270


def test_failures_in_a_row_are_counted_and_success_ends_the_row(target: Target, clock: Clock) -> None:
    """The second holds for 20 s, the first after a success for 10 s again, and so does one of another kind."""
    failures = Failures(10, clock, lambda: 0.0)
    failures.put(target, A, UNAVAILABLE)
    failures.put(target, A, UNAVAILABLE)
    clock.advance(19)
    assert failures.get(target, A)
    failures.remove(target, A)
    failures.put(target, A, UNAVAILABLE)
    clock.advance(10)
    assert failures.get(target, A) is None
    failures.put(target, A, MISSING)
    failures.put(target, A, UNAVAILABLE)
    clock.advance(10)
    assert failures.get(target, A) is None
