"""The API server of these tests: it answers what a test wrote, without a connection."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from extender.cluster.client import JSON, ClusterRefused
from extender.errors import ClusterError

LOST = ClusterError("connection reset")

Script = Sequence[bytes | ClusterError | None]


class ScriptedApi:
    """Answers gets and watches from scripts; what None stands for never comes.

    Where the scripts have ended gets fail, and watches are as `then`.
    """

    def __init__(
        self,
        pages: Iterable[bytes | ClusterError | None] = (),
        watches: Iterable[Script] = (),
        *,
        then: Script = (LOST,),
    ) -> None:
        self.paths: list[str] = []
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.accepted: list[str] = []
        self.stalls: list[float] = []
        self.open = 0  # watches
        self.said = asyncio.Event()  # set when all of a script has been said
        self.while_watching: Callable[[], None] = lambda: None
        self._pages = iter(pages)
        self._watches = iter(watches)
        self._then = then

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, **_bounds: float
    ) -> bytes:
        self.paths.append(path)
        self.lists.append(dict(query or {}))
        self.accepted.append(accept)
        return await self._said(next(self._pages, LOST))

    async def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        self.paths.append(path)
        self.watches.append(dict(query or {}))
        self.accepted.append(accept)
        self.stalls.append(stall_seconds)
        self.while_watching()
        self.open += 1
        try:
            for line in next(self._watches, self._then):
                yield await self._said(line)
        finally:
            self.open -= 1

    async def _said(self, answer: bytes | ClusterError | None) -> bytes:
        if isinstance(answer, ClusterError):
            raise answer
        if answer is None:
            self.said.set()
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    def versions(self) -> list[str]:
        return [query["resourceVersion"] for query in self.watches]


class ListedApi:
    """Answers lists of what it has by path, in pages of two.

    A path in `refused` gets that status, one in `expired` a 410 once; any other is empty, or `absent` with a status.
    """

    def __init__(
        self,
        lists: Mapping[str, Sequence[Any]],
        refused: Mapping[str, int] | None = None,
        expired: Sequence[str] = (),
        *,
        absent: int = 0,
    ) -> None:
        self.lists = dict(lists)
        self.refused = dict(refused or {})
        self.expired = list(expired)
        self.absent = absent
        self.queries: list[tuple[str, Mapping[str, str]]] = []

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, **_bounds: float
    ) -> bytes:
        query = dict(query or {})
        self.queries.append((path, query))
        status = self.refused.get(path, 0 if path in self.lists else self.absent)
        if path in self.expired and "continue" in query:
            self.expired.remove(path)
            status = 410
        if status:
            raise ClusterRefused(f"{path}: HTTP {status}", status)
        start = int(query.get("continue", 0))
        items = self.lists.get(path, ())
        following = {"continue": str(start + 2)} if start + 2 < len(items) else {}
        return msgspec.json.encode(
            {"metadata": {"resourceVersion": "5", **following}, "items": items[start : start + 2]}
        )
