"""The loop that tests wait with."""

import itertools

import pytest

from testbed.eventually import eventually


async def test_the_answer_is_returned_once_it_is_so() -> None:
    numbers = itertools.count()
    assert await eventually(lambda: next(numbers), lambda number: number == 3) == 3

    async def ask() -> int:
        return next(numbers)

    assert await eventually(ask, lambda number: number > 5) == 6


async def test_errors_that_are_named_are_no_answer_yet() -> None:
    numbers = itertools.count(-2)
    assert await eventually(lambda: 6 // next(numbers), lambda found: found == 6, despite=ZeroDivisionError) == 6
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 // 0, despite=KeyError)


async def test_what_never_comes_raises_with_the_last_answer() -> None:
    with pytest.raises(TimeoutError, match=r"after 0\.02 s still 'pending'"):
        await eventually(lambda: "pending", lambda said: said == "ready", seconds=0.02)


async def test_a_time_that_ran_out_elsewhere_is_not_taken_for_this_one() -> None:
    async def ask() -> int:
        raise TimeoutError("the server's")

    with pytest.raises(TimeoutError, match="the server's"):
        await eventually(ask)
