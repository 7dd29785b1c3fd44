"""When a circuit breaker refuses attempts, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.circuit_breaker import Backoff, CircuitBreaker
from testbed.clock import Clock

CLOSED, OPEN, OVER = "closed", "open", "over"
FIRST, MAX = 10.0, 300.0
BACKOFF = Backoff(FIRST, MAX)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(BACKOFF, clock=clock, random=lambda: 0.0)


def state_of(breaker: CircuitBreaker) -> str:
    return CLOSED if not breaker.failures else OPEN if breaker.is_open else OVER


@pytest.mark.parametrize(
    ("steps", "state", "failures"),
    [
        ("", CLOSED, 0),
        ("ok ok", CLOSED, 0),
        ("fail", OPEN, 1),
        ("fail 9.999", OPEN, 1),
        ("fail 10", OVER, 1),
        ("fail 10 ok", CLOSED, 0),
        ("fail 10 fail", OPEN, 2),
        ("fail 10 fail 19.999", OPEN, 2),
        ("fail 10 fail 20", OVER, 2),
        ("fail 10 fail 20 ok fail", OPEN, 1),
        ("fail 10 fail 20 ok fail 10", OVER, 1),
        ("fail 10 fail 619 fail", OPEN, 3),
        ("fail 10 fail 620 fail", OPEN, 1),  # nobody has tried for long
        ("throttle", OPEN, 1),
        ("throttle 59.999", OPEN, 1),
        ("throttle 60", OVER, 1),
        ("fail 10 throttle 60 fail 39.999", OPEN, 3),  # throttling counts in the row
    ],
)
def test_transitions(breaker: CircuitBreaker, clock: Clock, steps: str, state: str, failures: int) -> None:
    """Attempts one after the other, of a millisecond each; numbers are seconds that pass."""
    for step in steps.split():
        if step.replace(".", "").isdigit():
            clock.advance(float(step))
            continue
        clock.advance(0.001)
        if step == "ok":
            breaker.record_success()
        else:
            breaker.record_failure(60.0 if step == "throttle" else None)
    assert (state_of(breaker), breaker.failures) == (state, failures)


@given(
    first=st.floats(0.001, 1e3),
    factor=st.floats(1.0, 1e6),
    failures=st.integers(1, 10**6),
    chance=st.floats(0.0, 1.0, exclude_max=True),
)
def test_backoff_keeps_its_bounds(first: float, factor: float, failures: int, chance: float) -> None:
    """Never longer than the maximum, and shorter than the first by a fifth at most."""
    backoff = Backoff(first, first * factor)
    seconds = backoff.seconds(failures, lambda: chance)
    assert 0.8 * first * (1 - 1e-9) <= seconds <= backoff.max_seconds
    assert seconds <= backoff.seconds(failures + 1, lambda: chance)


@given(named=st.floats(0.0, 1e5), failures=st.integers(1, 100), chance=st.floats(0.0, 1.0, exclude_max=True))
def test_a_named_time_is_kept(named: float, failures: int, chance: float) -> None:
    """Never earlier than the other party said, and a tenth later at most, whatever came before."""
    seconds = BACKOFF.seconds(failures, lambda: chance, named)
    assert named <= seconds <= named * 1.1 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("named", "result", "wait_seconds"),
    [(None, None, 9.0), (3.0, None, 9.0), (60.0, 60.0, 60.0)],
    ids=["another", "earlier", "later"],
)
def test_failures_while_it_is_open_are_one(
    breaker: CircuitBreaker, clock: Clock, named: float | None, result: float | None, wait_seconds: float
) -> None:
    """The other party's word holds, whenever it was given, but shortens nothing; it does not count in the row again."""
    breaker.record_failure()
    clock.advance(1)
    assert breaker.record_failure(named) == result
    assert (breaker.failures, breaker.wait_seconds()) == (1, wait_seconds)
