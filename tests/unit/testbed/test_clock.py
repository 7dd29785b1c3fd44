"""The clock of the tests."""

from testbed.clock import Clock


def test_time_stands_still_until_it_is_moved() -> None:
    """By so many seconds, or to a time."""
    clock = Clock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.advance(2.5)
    assert clock() == 7.5
    clock.now = 1.0
    assert clock() == 1.0


def test_a_wall_clock_runs_with_it() -> None:
    """So many seconds ahead, whatever the time is."""
    clock = Clock()
    wall = clock.ahead(100.0)
    clock.advance(1.0)
    assert wall() == clock() + 100.0
