"""When a store that failed is tried again, and what is said about it."""

import pytest
import structlog

from extender.metrics import REGISTRY
from extender.resolver.store_breakers import Doing, Health
from extender.store.rows import StoreError
from testbed.clock import Clock

READING, WRITING = Doing.READING, Doing.WRITING
LOCKED = StoreError("locked", "somebody has it")


@pytest.fixture
def health(clock: Clock) -> Health:
    """Of a store that is well."""
    return Health("sqlite:////file", clock)


def test_a_store_that_is_well_is_asked_as_often_as_one_likes(health: Health) -> None:
    """Success changes nothing."""
    for _ in range(3):
        assert health.admit(READING)
        health.succeeded(READING)


def test_after_failures_it_is_left_alone_for_longer_and_longer(health: Health, clock: Clock) -> None:
    """One second doubling to a minute; then a single attempt goes through, and its success ends that."""
    waits = []
    for _ in range(8):
        health.failed(READING, LOCKED)
        waits.append(health.rest_seconds(READING))
        assert not health.admit(READING)
        clock.advance(waits[-1])
        assert health.admit(READING)
        assert not health.admit(READING)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    health.succeeded(READING)
    assert health.admit(READING)
    assert health.admit(READING)


def test_a_probe_that_never_ends_does_not_keep_others_out_for_ever(health: Health, clock: Clock) -> None:
    """Another one goes through after the same time."""
    health.failed(READING, LOCKED)
    clock.advance(1)
    assert health.admit(READING)
    clock.advance(1)
    assert health.admit(READING)


def test_a_store_that_cannot_be_written_may_still_be_read(health: Health) -> None:
    """A full disk, or a server that is out of memory."""
    health.failed(WRITING, LOCKED)
    assert not health.admit(WRITING)
    assert health.admit(READING)


def test_trouble_is_said_once_and_its_end_too(health: Health) -> None:
    """However often it fails meanwhile, and in whatever it is doing."""
    with structlog.testing.capture_logs() as events:
        for doing in (READING, WRITING, READING):
            health.failed(doing, LOCKED)
        health.succeeded(READING)
        health.failed(READING, LOCKED)
        health.succeeded(READING)
        health.succeeded(WRITING)
        health.succeeded(WRITING)
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


def test_every_failure_counts(health: Health) -> None:
    """By its reason."""
    before = REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) or 0.0
    health.failed(READING, LOCKED)
    health.failed(WRITING, LOCKED)
    assert REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) == before + 2
