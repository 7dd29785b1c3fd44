"""How many reviews of callers that have not shown who they are the webhooks of a listener answer.

This is for listeners where the API server shows itself by a token in the path: a path without one is open to everybody.
"""

from collections.abc import Awaitable, Callable

from extender.budgets import declare_budget
from extender.server.routes import Reply, current_caller
from extender.turns import Interest, Turns, set_interest

_PER_SECOND = 200.0
_REVIEWS = declare_budget(
    "outlets.strangers.reviews",
    unit="reviews of strangers at once, others wait",
    total=200,
    most_each=200,
    why=f"a review takes 0.2 ms of processor time, and {_PER_SECOND:g} of them a second are answered at all paths "
    "together to callers without the token where one is used; addresses and paths take turns",
)


class Strangers:
    """The turns of strangers at all paths of one listener. `clock` gives monotonic seconds.

    Each address is a tenant. So the API server, which shows no token where a pod's scheduler is named, has its turns
    among a flood from elsewhere.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turns = Turns(_REVIEWS, clock, per_second=_PER_SECOND)

    def take_turns(self, path: str, answer: Callable[[bytes], Reply]) -> Callable[[bytes], Awaitable[Reply]]:
        """A function that gives the answer of `answer` to a body at `path` when it is the caller's turn."""

        async def answer_in_turn(body: bytes) -> Reply:
            set_interest(Interest(current_caller(), self._clock()))
            async with self._turns.turn(path):
                return answer(body)

        return answer_in_turn
