"""Questions that may have ended a fetcher, which are asked again alone: who is next, and who is suspected at all.

Starts no process and asks nothing; the clock is an argument.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from extender.images.reference import ImageReference
from extender.tables import LruTable

T = TypeVar("T")

_SUSPECTED_SECONDS = 300.0
_MOST_SUSPECTS = 4096


class Suspects(Generic[T]):
    """The questions that wait to be asked alone, and the images that are asked for alone for some minutes.

    Tenants take turns, so that one with many suspects keeps none of another's from being cleared.
    """

    def __init__(self, clock: Callable[[], float], size: int = _MOST_SUSPECTS) -> None:
        """Remembers at most `size` images."""
        self._clock = clock
        self._until: LruTable[ImageReference, float] = LruTable(size)
        self._waiting: dict[str, deque[T]] = {}

    def suspect(self, image: ImageReference) -> None:
        """Notes that asking for the image may end a fetcher, since one ended meanwhile."""
        self._until.put(image, self._clock() + _SUSPECTED_SECONDS)

    def clear(self, image: ImageReference) -> None:
        """Notes that the image was asked for alone, and has an answer."""
        self._until.remove(image)

    def is_suspect(self, image: ImageReference) -> bool:
        """Whether to ask for the image alone."""
        return (self._until.get(image) or 0.0) > self._clock()

    def add(self, tenant: str, question: T) -> None:
        """Has the question wait for its tenant's turn."""
        self._waiting.setdefault(tenant, deque()).append(question)

    def put_back(self, tenant: str, question: T) -> None:
        """Has the question wait once more, as the tenant's first."""
        self._waiting.setdefault(tenant, deque()).appendleft(question)

    def next(self) -> T | None:
        """Returns the next question, of the tenant whose turn is longest ago; None if none waits."""
        if not self._waiting:
            return None
        tenant = next(iter(self._waiting))
        questions = self._waiting.pop(tenant)
        question = questions.popleft()
        if questions:
            self._waiting[tenant] = questions  # which is now the last
        return question
