"""What is worked out before it is asked: when, for whom, and that nobody gets another's answer."""

import asyncio
from collections.abc import Callable

from extender.errors import InvalidRequest
from extender.outlets.precomputed_scores import FRESH_SECONDS, Foresight
from testbed.clock import Clock


class Work:
    """Counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    def giving(self, answer: str) -> Callable[[], str]:
        """Work with that result."""

        def work() -> str:
            self.done += 1
            return answer

        return work


async def passed() -> None:
    """One turn of the event loop."""
    await asyncio.sleep(0)


async def learned(foresight: Foresight[str], work: Work) -> None:
    """The caller has come back with the same request once."""
    foresight.expect(b"first", work.giving("first"))
    await passed()
    assert foresight.take(b"first") is None


async def test_nothing_is_worked_out_for_a_caller_who_was_never_seen_to_come_back() -> None:
    """One without prioritizeVerb never does."""
    foresight, work = Foresight[str](Clock()), Work()
    for body in (b"1", b"2", b"3"):
        foresight.expect(body, work.giving("x"))
        await passed()
    assert work.done == 0


async def test_who_comes_back_once_finds_the_answer_the_next_time() -> None:
    """Worked out after the first request's answer, and given once."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    foresight.expect(b"second", work.giving("answer"))
    assert work.done == 0
    await passed()
    assert work.done == 1
    assert foresight.take(b"second") == "answer"
    assert foresight.take(b"second") is None


async def test_another_request_is_not_given_the_answer() -> None:
    """And does not take it away either."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    foresight.expect(b"second", work.giving("answer"))
    await passed()
    assert foresight.take(b"other") is None
    assert foresight.take(b"second") == "answer"


async def test_who_comes_back_at_once_is_not_kept_waiting() -> None:
    """Nothing has been worked out yet, and then it is not needed any more."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    foresight.expect(b"second", work.giving("answer"))
    assert foresight.take(b"second") is None
    await passed()
    assert work.done == 0


async def test_old_answers_are_not_given() -> None:
    """The nodes may have changed since."""
    clock = Clock(0.0)
    foresight, work = Foresight[str](clock), Work()
    await learned(foresight, work)
    foresight.expect(b"second", work.giving("answer"))
    await passed()
    clock.now = FRESH_SECONDS
    assert foresight.take(b"second") is None


async def test_work_that_nobody_fetches_is_not_done_again_until_somebody_would_have() -> None:
    """kube-scheduler does not ask prioritize where one node is left."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    for body in (b"2", b"3", b"4"):
        foresight.expect(body, work.giving("x"))
        await passed()
    assert work.done == 1
    assert foresight.take(b"4") is None
    foresight.expect(b"5", work.giving("y"))
    await passed()
    assert foresight.take(b"5") == "y"


async def test_a_request_that_turns_out_to_be_invalid_is_left_to_who_comes_back() -> None:
    """No mistake of a caller's ends up in the event loop."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))

    def invalid() -> str:
        raise InvalidRequest("no names")

    foresight.expect(b"second", invalid)
    await passed()
    assert foresight.take(b"second") is None
    assert not unhandled


async def test_megabytes_are_not_kept() -> None:
    """Whole nodes are worked out when they are asked for."""
    foresight, work = Foresight[str](Clock()), Work()
    await learned(foresight, work)
    foresight.expect(b"x" * 2_000_000, work.giving("x"))
    await passed()
    assert work.done == 0
