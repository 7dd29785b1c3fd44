"""A pace slows down while timers are late."""

import pytest

from extender.slowdown import Slowdown


def test_it_grows_while_timers_are_late_and_shrinks_while_they_are_not() -> None:
    """Between 1 and 4; one late timer is forgotten after some that are on time."""
    slowdown = Slowdown()
    slowdown.note(0.002)
    assert slowdown.divisor == 1
    slowdown.note(0.01)
    assert slowdown.divisor == pytest.approx(1.5)
    for _ in range(20):
        slowdown.note(0.01)
    assert slowdown.divisor == 4
    for _ in range(20):
        slowdown.note(0.0)
    assert slowdown.divisor == 1
