"""What prioritize will be asked next, worked out before it is.

kube-scheduler asks filter, scores the nodes itself, and asks prioritize; where filter refused nothing, the second
request is the first, byte for byte, and the time in between is ours to use. Knows no pod and no node.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from extender.errors import InvalidRequest

_Answer = TypeVar("_Answer")

# kube-scheduler comes back within milliseconds; what it does not fetch soon would be old news.
FRESH_SECONDS = 1.0
# Whole nodes are megabytes, which are not to be kept.
_KEPT_BYTES = 1 << 20


class PrecomputedScores(Generic[_Answer]):
    """The answer to the one request that is expected, if the caller was seen to come back with the same request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._body = b""
        self._answer: _Answer | None = None
        self._expires_at = 0.0
        self._comes_back = False

    def expect(self, body: bytes, work: Callable[[], _Answer]) -> None:
        """The request may come again; if that is how this caller does, `work` is done once its answer is sent."""
        if len(body) > _KEPT_BYTES:
            return
        if self._answer is not None:
            self._comes_back = False  # nobody has fetched it
        self._body, self._answer = body, None
        self._expires_at = self._clock() + FRESH_SECONDS
        if self._comes_back:
            asyncio.get_running_loop().call_soon(self._do, body, work)

    def take(self, body: bytes) -> _Answer | None:
        """The answer to this request, once; None if it is not the expected one, or nothing has been worked out."""
        if body != self._body:
            return None
        self._comes_back = True
        answer, self._body, self._answer = self._answer, b"", None
        return answer if self._clock() < self._expires_at else None

    def _do(self, body: bytes, work: Callable[[], _Answer]) -> None:
        if body is self._body:
            with contextlib.suppress(InvalidRequest):  # whoever comes back is told so
                self._answer = work()
