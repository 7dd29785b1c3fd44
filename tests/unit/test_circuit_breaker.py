"""When a circuit breaker refuses attempts, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.circuit_breaker import Backoff, CircuitBreaker
from testbed.clock import Clock

CLOSED, OPEN, PROBING = "closed", "open", "probing"
FIRST, MAX = 10.0, 300.0
BACKOFF = Backoff(FIRST, MAX)
PROBE = 5.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(BACKOFF, clock=clock, random=lambda: 0.0, probe_seconds=PROBE)


def state_of(breaker: CircuitBreaker) -> str:
    return CLOSED if not breaker.failures else OPEN if breaker.is_open else PROBING


@pytest.mark.parametrize(
    ("steps", "state", "failures"),
    [
        pytest.param("", CLOSED, 0, id="a-new-breaker"),
        pytest.param("ok ok", CLOSED, 0, id="success-keeps-it-closed"),
        pytest.param("fail", OPEN, 1, id="a-failure-opens"),
        pytest.param("fail 9.999", OPEN, 1, id="open-until-its-time-is-over"),
        pytest.param("fail 10", PROBING, 1, id="then-it-probes"),
        pytest.param("fail 10 ok", CLOSED, 0, id="a-probe-s-success-closes"),
        pytest.param("fail 10 fail", OPEN, 2, id="a-probe-s-failure-opens-again"),
        pytest.param("fail 10 fail 19.999", OPEN, 2, id="for-longer"),
        pytest.param("fail 10 fail 20", PROBING, 2, id="twice-as-long"),
        pytest.param("fail 10 fail 20 ok fail", OPEN, 1, id="success-ends-the-row"),
        pytest.param("fail 10 fail 20 ok fail 10", PROBING, 1, id="and-the-first-time-is-short-again"),
        pytest.param("fail 10 nothing", PROBING, 1, id="a-probe-without-outcome-changes-nothing"),
        pytest.param("fail 10 nothing 5 ok", CLOSED, 0, id="and-gives-way-to-the-next"),
        pytest.param("throttle", OPEN, 1, id="throttling-opens"),
        pytest.param("throttle 59.999", OPEN, 1, id="for-the-time-that-was-named"),
        pytest.param("throttle 60", PROBING, 1, id="and-no-longer"),
        pytest.param("fail 10 throttle 60 fail 39.999", OPEN, 3, id="throttling-counts-in-the-row"),
    ],
)
def test_transitions(breaker: CircuitBreaker, clock: Clock, steps: str, state: str, failures: int) -> None:
    """Attempts one after the other, of a millisecond each; numbers are seconds that pass."""
    for step in steps.split():
        if step.replace(".", "").isdigit():
            clock.advance(float(step))
            continue
        assert breaker.admit()
        clock.advance(0.001)
        if step == "ok":
            breaker.record_success()
        elif step != "nothing":
            breaker.record_failure(60.0 if step == "throttle" else None)
    assert (state_of(breaker), breaker.failures) == (state, failures)


def test_only_a_closed_breaker_admits_several(breaker: CircuitBreaker, clock: Clock) -> None:
    """Open it refuses all, and probing all but one."""
    assert all(breaker.admit() for _ in range(3))
    breaker.record_failure()
    assert not breaker.admit()
    clock.advance(10)
    assert [breaker.admit(), breaker.admit()] == [True, False]
    assert breaker.record_success()
    assert all(breaker.admit() for _ in range(3))


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


def test_a_probe_without_end_gives_way_after_its_time(breaker: CircuitBreaker, clock: Clock) -> None:
    """Once for every `probe_seconds`; and while it lasts the breaker is not open."""
    breaker.record_failure()
    clock.advance(10)
    for _ in range(3):
        assert breaker.admit()
        assert (breaker.wait_seconds(), breaker.is_open) == (PROBE, False)
        clock.advance(PROBE - 0.001)
        assert not breaker.admit()
        clock.advance(0.001)
