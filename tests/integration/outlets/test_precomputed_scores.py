"""What is worked out before it is asked: when, for whom, and that nobody gets another's answer."""

import asyncio
from collections.abc import Callable

from extender.errors import InvalidRequest
from extender.outlets.precomputed_scores import FRESH_SECONDS, PrecomputedScores
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


async def learned(precomputed_scores: PrecomputedScores[str], work: Work) -> None:
    """The caller has come back with the same request once."""
    precomputed_scores.expect(b"first", work.giving("first"))
    await passed()
    assert precomputed_scores.take(b"first") is None


async def test_nothing_is_worked_out_for_a_caller_who_was_never_seen_to_come_back() -> None:
    """One without prioritizeVerb never does."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    for body in (b"1", b"2", b"3"):
        precomputed_scores.expect(body, work.giving("x"))
        await passed()
    assert work.done == 0


async def test_who_comes_back_once_finds_the_answer_the_next_time() -> None:
    """Worked out after the first request's answer, and given once."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    precomputed_scores.expect(b"second", work.giving("answer"))
    assert work.done == 0
    await passed()
    assert work.done == 1
    assert precomputed_scores.take(b"second") == "answer"
    assert precomputed_scores.take(b"second") is None


async def test_another_request_is_not_given_the_answer() -> None:
    """And does not take it away either."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    precomputed_scores.expect(b"second", work.giving("answer"))
    await passed()
    assert precomputed_scores.take(b"other") is None
    assert precomputed_scores.take(b"second") == "answer"


async def test_who_comes_back_at_once_is_not_kept_waiting() -> None:
    """Nothing has been worked out yet, and then it is not needed any more."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    precomputed_scores.expect(b"second", work.giving("answer"))
    assert precomputed_scores.take(b"second") is None
    await passed()
    assert work.done == 0


async def test_old_answers_are_not_given() -> None:
    """The nodes may have changed since."""
    clock = Clock(0.0)
    precomputed_scores, work = PrecomputedScores[str](clock), Work()
    await learned(precomputed_scores, work)
    precomputed_scores.expect(b"second", work.giving("answer"))
    await passed()
    clock.now = FRESH_SECONDS
    assert precomputed_scores.take(b"second") is None


async def test_work_that_nobody_fetches_is_not_done_again_until_somebody_would_have() -> None:
    """kube-scheduler does not ask prioritize where one node is left."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    for body in (b"2", b"3", b"4"):
        precomputed_scores.expect(body, work.giving("x"))
        await passed()
    assert work.done == 1
    assert precomputed_scores.take(b"4") is None
    precomputed_scores.expect(b"5", work.giving("y"))
    await passed()
    assert precomputed_scores.take(b"5") == "y"


async def test_a_request_that_turns_out_to_be_invalid_is_left_to_who_comes_back() -> None:
    """No mistake of a caller's ends up in the event loop."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))

    def invalid() -> str:
        raise InvalidRequest("no names")

    precomputed_scores.expect(b"second", invalid)
    await passed()
    assert precomputed_scores.take(b"second") is None
    assert not unhandled


async def test_megabytes_are_not_kept() -> None:
    """Whole nodes are worked out when they are asked for."""
    precomputed_scores, work = PrecomputedScores[str](Clock()), Work()
    await learned(precomputed_scores, work)
    precomputed_scores.expect(b"x" * 2_000_000, work.giving("x"))
    await passed()
    assert work.done == 0
