"""The next prioritize answer, computed while kube-scheduler scores the nodes itself.

kube-scheduler calls filter, runs its own scoring, and calls prioritize. If filter refused no node, the second request
is equal to the first byte for byte, and its answer can be computed in between.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from extender.errors import InvalidRequest
from extender.tables import declare_cache

_Answer = TypeVar("_Answer")

# kube-scheduler sends the second request within milliseconds; an answer that it does not fetch soon would be stale.
FRESH_SECONDS = 1.0
# Requests with whole nodes have megabytes, and are not kept.
_KEPT_BYTES = 1 << 20
declare_cache(
    "outlets.precomputed_scores.answer",
    key="request body",
    lifetime=f"{FRESH_SECONDS:g} s",
    bound=1,
    at_most="3 MB",
    invalidated_by="the first use, another request",
)


class PrecomputedScores(Generic[_Answer]):
    """Keeps the answer to the request that is expected next, for a caller that repeats its requests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._body = b""
        self._answer: _Answer | None = None
        self._expires_at = 0.0
        self._comes_back = False

    def expect(self, body: bytes, work: Callable[[], _Answer]) -> None:
        """Expects the request again. If the last one was repeated, runs `work` after the first answer is sent."""
        if len(body) > _KEPT_BYTES:
            return
        if self._answer is not None:
            self._comes_back = False  # it was never fetched
        self._body, self._answer = body, None
        self._expires_at = self._clock() + FRESH_SECONDS
        if self._comes_back:
            asyncio.get_running_loop().call_soon(self._do, body, work)

    def take(self, body: bytes) -> _Answer | None:
        """The answer to this request, once; None if another was expected, or the answer is missing or stale."""
        if body != self._body:
            return None
        self._comes_back = True
        answer, self._body, self._answer = self._answer, b"", None
        return answer if self._clock() < self._expires_at else None

    def _do(self, body: bytes, work: Callable[[], _Answer]) -> None:
        if body is self._body:
            with contextlib.suppress(InvalidRequest):  # the repeated request gets the error
                self._answer = work()
