"""When a circuit breaker refuses attempts, and for how long."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker, State
from testbed.clock import Clock

CLOSED, OPEN, PROBING = State.CLOSED, State.OPEN, State.PROBING
FIRST, MAX = 10.0, 300.0
BACKOFF = Backoff(FIRST, MAX)
NEVER = -math.inf
A_BIT = 1e-6  # what adding and subtracting times may lose


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    """A closed breaker; its backoff does not vary."""
    return CircuitBreaker(BACKOFF, clock=clock, random=lambda: 0.0)


def begin(breaker: CircuitBreaker) -> Attempt:
    """An attempt, which the breaker must admit."""
    attempt = breaker.admit()
    assert attempt is not None
    return attempt


def fail_after(breaker: CircuitBreaker, clock: Clock, seconds: float = 1.0) -> None:
    """An attempt that fails after so many seconds."""
    attempt = begin(breaker)
    clock.advance(seconds)
    breaker.record_failure(attempt)


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
        pytest.param("fail 10 nothing ok", CLOSED, 0, id="and-gives-way-to-the-next"),
        pytest.param("throttle", OPEN, 1, id="throttling-opens"),
        pytest.param("throttle 59.999", OPEN, 1, id="for-the-time-that-was-named"),
        pytest.param("throttle 60", PROBING, 1, id="and-no-longer"),
        pytest.param("fail 10 throttle 60 fail 39.999", OPEN, 3, id="throttling-counts-in-the-row"),
    ],
)
def test_transitions(breaker: CircuitBreaker, clock: Clock, steps: str, state: State, failures: int) -> None:
    """Attempts one after the other, of a millisecond each; numbers are seconds that pass."""
    for step in steps.split():
        if step.replace(".", "").isdigit():
            clock.advance(float(step))
            continue
        attempt = begin(breaker)
        clock.advance(0.001)
        if step == "ok":
            breaker.record_success(attempt)
        elif step == "nothing":
            breaker.release(attempt)
        else:
            breaker.record_failure(attempt, 60.0 if step == "throttle" else None)
    assert (breaker.state(), breaker.failures) == (state, failures)


def test_only_a_closed_breaker_admits_several(breaker: CircuitBreaker, clock: Clock) -> None:
    """Open it refuses all, and probing all but one."""
    first, *_ = [begin(breaker) for _ in range(3)]
    clock.advance(1)
    breaker.record_failure(first)
    assert breaker.admit() is None
    clock.advance(10)
    probe = begin(breaker)
    assert breaker.state() is PROBING
    assert breaker.admit() is None
    breaker.record_success(probe)
    assert all(breaker.admit() for _ in range(3))


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (5000, 300)])
def test_backoff_doubles_up_to_its_maximum(failures: int, seconds: float) -> None:
    """Ten seconds, doubling up to five minutes, however many failures there are."""
    assert BACKOFF.seconds(failures, lambda: 0.0) == seconds


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


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_the_breaker_s_times_vary_by_chance(clock: Clock, chance: float) -> None:
    """By the same rule."""
    breaker = CircuitBreaker(BACKOFF, clock=clock, random=lambda: chance)
    seconds = breaker.record_failure(begin(breaker))
    assert seconds == pytest.approx(10 * (1 - 0.2 * chance))
    assert breaker.wait_seconds() == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("named", "result", "wait_seconds"), [(3.0, None, 9.0), (60.0, 60.0, 60.0)], ids=["earlier", "later"]
)
def test_a_named_time_in_flight_only_lengthens(
    breaker: CircuitBreaker, clock: Clock, named: float, result: float | None, wait_seconds: float
) -> None:
    """It is the other party's word, whenever it was given; it does not count in the row again."""
    in_flight = begin(breaker)
    fail_after(breaker, clock)
    clock.advance(1)
    assert breaker.record_failure(in_flight, named) == result
    assert (breaker.failures, breaker.wait_seconds()) == (1, wait_seconds)


def test_a_named_time_that_comes_in_during_a_probe(breaker: CircuitBreaker, clock: Clock) -> None:
    """The breaker is open until then, and the probe's success does not close it."""
    in_flight = begin(breaker)
    fail_after(breaker, clock)
    clock.advance(10)
    probe = begin(breaker)
    clock.advance(1)
    breaker.record_failure(in_flight, 60.0)
    assert not breaker.record_success(probe)
    assert (breaker.state(), breaker.wait_seconds()) == (OPEN, 60.0)


def test_a_failure_never_shortens_a_named_time(breaker: CircuitBreaker, clock: Clock) -> None:
    """An attempt made although the breaker is open, as where nobody else can be asked, fails in a shorter row."""
    breaker.record_failure(begin(breaker), 100.0)
    clock.advance(1)
    assert breaker.record_failure(Attempt(clock())) == 99.0
    assert (breaker.failures, breaker.wait_seconds()) == (2, 99.0)


def test_success_of_an_attempt_made_while_open_closes(breaker: CircuitBreaker, clock: Clock) -> None:
    """It began after the opening, so the other party is well."""
    fail_after(breaker, clock)
    clock.advance(1)
    assert breaker.record_success(Attempt(clock()))
    assert breaker.state() is CLOSED


def test_a_probe_without_end_gives_way_after_its_time(clock: Clock) -> None:
    """Once for every `probe_seconds`; and when the earlier one does end, the later is still the probe."""
    breaker = CircuitBreaker(BACKOFF, clock=clock, random=lambda: 0.0, probe_seconds=5)
    fail_after(breaker, clock)
    clock.advance(10)
    earlier = begin(breaker)
    assert breaker.wait_seconds() == 5
    clock.advance(4.999)
    assert breaker.admit() is None
    clock.advance(0.001)
    begin(breaker)
    breaker.release(earlier)
    assert breaker.admit() is None


def test_a_breaker_without_a_probe_s_time_waits_for_its_end(breaker: CircuitBreaker, clock: Clock) -> None:
    """For however long that takes."""
    fail_after(breaker, clock)
    clock.advance(10)
    probe = begin(breaker)
    clock.advance(1e9)
    assert breaker.wait_seconds() == math.inf
    breaker.release(probe)
    assert breaker.admit()


class Attempts(RuleBasedStateMachine):
    """Attempts that overlap in any order, beside the times that the breaker has stated itself."""

    @initialize(chance=st.floats(0.0, 1.0, exclude_max=True))
    def start(self, chance: float) -> None:
        """All is well."""
        self.clock = Clock()
        self.breaker = CircuitBreaker(BACKOFF, clock=self.clock, random=lambda: chance)
        self.in_flight: list[tuple[Attempt, bool]] = []  # and whether it is a probe
        self.opened_at = self.refused_until = NEVER

    @rule(seconds=st.sampled_from([0.0, 1.0, 8.0, 10.0, 300.0]))
    def admit(self, seconds: float) -> None:
        """Somebody would make an attempt: none while the breaker is open, and one at a time while it probes."""
        self.clock.advance(seconds)
        state, wait_seconds = self.breaker.state(), self.breaker.wait_seconds()
        attempt = self.breaker.admit()
        assert (attempt is None) == (wait_seconds > 0)
        is_probed = any(is_probe for _, is_probe in self.in_flight)
        assert (attempt is None) == (state is OPEN or (state is PROBING and is_probed))
        if attempt:
            assert self.clock() >= self.refused_until - A_BIT
            self.in_flight.append((attempt, state is PROBING))

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]), number=st.integers(0, 3))
    def succeed(self, seconds: float, number: int) -> None:
        """An attempt succeeds: that closes the breaker, unless it began before the opening."""
        attempt, was = self._end(seconds, number), self.breaker.state()
        closed = self.breaker.record_success(attempt) if attempt else False
        assert closed == (attempt is not None and was is not CLOSED and attempt.began_at > self.opened_at)
        assert self.breaker.state() is (CLOSED if closed else was)
        if closed:
            self.opened_at = self.refused_until = NEVER

    @rule(
        seconds=st.sampled_from([0.0, 1.0, 10.0]), number=st.integers(0, 3), named=st.sampled_from([None, 1.0, 400.0])
    )
    def fail(self, seconds: float, number: int, named: float | None) -> None:
        """An attempt fails: a backoff is within its bounds, and nothing shortens the time that the breaker is open."""
        attempt = self._end(seconds, number)
        if not attempt:
            return
        now, before = self.clock(), self.breaker.failures
        is_news = before == 0 or attempt.began_at > self.opened_at
        open_seconds = self.breaker.record_failure(attempt, named)
        assert self.breaker.failures == before + is_news
        if named is not None:
            assert self.breaker.wait_seconds() >= named - A_BIT
        if open_seconds is None:
            assert not is_news
            return
        assert now + open_seconds >= self.refused_until - A_BIT
        if named is None:
            assert is_news
            assert 0.8 * FIRST - A_BIT <= open_seconds <= max(MAX, self.refused_until - now) + A_BIT
        self.opened_at, self.refused_until = now, now + open_seconds

    @rule(number=st.integers(0, 3))
    def cancel(self, number: int) -> None:
        """An attempt ends without an outcome, which changes nothing but who may be the probe."""
        attempt, before = self._end(0.0, number), (self.breaker.state(), self.breaker.failures)
        if attempt:
            self.breaker.release(attempt)
        assert (self.breaker.state(), self.breaker.failures) == before

    def _end(self, seconds: float, number: int) -> Attempt | None:
        self.clock.advance(seconds)
        return self.in_flight.pop(number % len(self.in_flight))[0] if self.in_flight else None


Attempts.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_any_order_of_attempts = Attempts.TestCase
