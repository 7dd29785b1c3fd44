"""When a store that failed is tried again, and what is said about it."""

import pytest
import structlog

from extender.circuit_breaker import Attempt
from extender.metrics import REGISTRY
from extender.resolver.store_breakers import StoreBreakers, StoreOperation
from extender.store.rows import StoreError
from testbed.clock import Clock

READING, WRITING = StoreOperation.READING, StoreOperation.WRITING
LOCKED = StoreError("locked", "somebody has it")


@pytest.fixture
def breakers(clock: Clock) -> StoreBreakers:
    """Of a store that is well; backoffs do not vary."""
    return StoreBreakers("sqlite:////file", clock=clock, random=lambda: 0.0)


def begin(breakers: StoreBreakers, operation: StoreOperation) -> Attempt:
    """An attempt, which must be admitted."""
    attempt = breakers.admit(operation)
    assert attempt
    return attempt


def test_a_store_that_is_well_is_asked_as_often_as_one_likes(breakers: StoreBreakers) -> None:
    """Success changes nothing."""
    for _ in range(3):
        breakers.record_success(READING, begin(breakers, READING))


def test_after_failures_it_is_left_alone_for_longer_and_longer(breakers: StoreBreakers, clock: Clock) -> None:
    """One second doubling to a minute; then a single attempt goes through, and its success ends that."""
    waits = []
    attempt = begin(breakers, READING)
    for _ in range(8):
        breakers.record_failure(READING, attempt, LOCKED)
        waits.append(breakers.wait_seconds(READING))
        assert not breakers.admit(READING)
        clock.advance(waits[-1])
        attempt = begin(breakers, READING)
        assert not breakers.admit(READING)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    breakers.record_success(READING, attempt)
    assert breakers.admit(READING)
    assert breakers.admit(READING)


def test_a_burst_of_failures_is_one_failure(breakers: StoreBreakers) -> None:
    """Eight reads that time out together close the store for a second, not for a minute."""
    attempts = [begin(breakers, READING) for _ in range(8)]
    for attempt in attempts:
        breakers.record_failure(READING, attempt, LOCKED)
    assert breakers.wait_seconds(READING) == 1


def test_a_probe_that_never_ends_does_not_keep_others_out_for_ever(breakers: StoreBreakers, clock: Clock) -> None:
    """Another one goes through after the same time."""
    breakers.record_failure(READING, begin(breakers, READING), LOCKED)
    clock.advance(1)
    assert breakers.admit(READING)
    assert not breakers.admit(READING)
    clock.advance(1)
    assert breakers.admit(READING)


def test_a_probe_that_comes_to_nothing_gives_way_to_the_next(breakers: StoreBreakers, clock: Clock) -> None:
    """A lookup that was cancelled says nothing about the store."""
    breakers.record_failure(READING, begin(breakers, READING), LOCKED)
    clock.advance(1)
    breakers.release(READING, begin(breakers, READING))
    assert breakers.admit(READING)


def test_a_store_that_cannot_be_written_may_still_be_read(breakers: StoreBreakers) -> None:
    """A full disk, or a server that is out of memory."""
    breakers.record_failure(WRITING, begin(breakers, WRITING), LOCKED)
    assert not breakers.admit(WRITING)
    assert breakers.admit(READING)


def test_failure_is_logged_once_and_its_end_too(breakers: StoreBreakers, clock: Clock) -> None:
    """However often it fails meanwhile, reading or writing."""

    def fail(operation: StoreOperation) -> None:
        clock.advance(100)
        breakers.record_failure(operation, begin(breakers, operation), LOCKED)

    def succeed(operation: StoreOperation) -> None:
        clock.advance(100)
        breakers.record_success(operation, begin(breakers, operation))

    with structlog.testing.capture_logs() as events:
        for operation in (READING, WRITING, READING):
            fail(operation)
        succeed(READING)
        fail(READING)
        succeed(READING)
        succeed(WRITING)
        succeed(WRITING)
    assert events == [
        {
            "event": "store.failed",
            "log_level": "warning",
            "store": "sqlite:////file",
            "doing": "reading",
            "reason": "locked",
            "detail": "somebody has it",
        },
        {"event": "store.recovered", "log_level": "info", "store": "sqlite:////file"},
    ]


def test_every_failure_counts(breakers: StoreBreakers) -> None:
    """By its reason."""
    before = REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) or 0.0
    breakers.record_failure(READING, begin(breakers, READING), LOCKED)
    breakers.record_failure(WRITING, begin(breakers, WRITING), LOCKED)
    assert REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) == before + 2
