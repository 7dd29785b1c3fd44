"""What fuzz targets share: an event loop, files, bounds on texts, a session that answers from memory."""

import asyncio
import functools
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from multidict import CIMultiDict, CIMultiDictProxy

T = TypeVar("T")

# Sentences about wrong input end in logs, events and warnings. They quote at most a hundred characters of it.
SENTENCE_CHARACTERS = 1000


@functools.cache
def _loop() -> asyncio.Runner:
    """One event loop for all inputs of a process: opening one takes longer than most inputs do."""
    return asyncio.Runner()


_ENDINGS: list[Callable[[], None]] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, on the loop that all calls share until `close_loop`."""
    return _loop().get_loop().run_until_complete(work)  # the runner's own would set a signal handler each time


def close_loop() -> None:
    """Ends what `at_end` names and closes the loop of `run`; the next call opens another one."""
    while _ENDINGS:
        _ENDINGS.pop()()
    _loop().close()
    _loop.cache_clear()


def at_end(ending: Callable[[], None]) -> None:
    """Has `close_loop` call this first, which closes something that is open for all inputs."""
    _ENDINGS.append(ending)


@contextmanager
def file_of(data: bytes, name: str = "file") -> Iterator[Path]:
    """A file of that name with these bytes, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder, name)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        yield file


async def settle(turns: int = 20) -> None:
    """Lets the loop run what is ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


def check_sentence(said: object, quoted_characters: int = 0) -> None:
    """Fails unless the text of an error is short enough for a log and an event, but for what it quotes of a file."""
    assert len(str(said)) <= SENTENCE_CHARACTERS + quoted_characters, str(said)[:200]


class CannedSession:
    """Stands for an `aiohttp.ClientSession`: each request gets the next of `bodies` with status 200, then the last."""

    def __init__(self, *bodies: bytes) -> None:
        self.requests: list[str] = []
        self._bodies = bodies

    def request(self, method: str, url: object, **options: object) -> "CannedResponse":
        headers = options.get("headers")
        for name, value in headers.items() if isinstance(headers, Mapping) else ():
            if not {"\r", "\n", "\0"}.isdisjoint(value):
                raise ValueError(f"{name} is no header, says aiohttp")
        self.requests.append(f"{method} {url}")
        body = self._bodies[min(len(self.requests), len(self._bodies)) - 1]
        return CannedResponse(200, {}, body)


class CannedResponse:
    """A response whose body is in memory; its own content, and its own context."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = CIMultiDictProxy(CIMultiDict(headers))
        self._body = body

    @property
    def content(self) -> "CannedResponse":
        return self

    async def read(self, most_bytes: int) -> bytes:
        piece, self._body = self._body[:most_bytes], self._body[most_bytes:]
        return piece

    async def iter_chunked(self, most_bytes: int) -> AsyncIterator[bytes]:
        while piece := await self.read(most_bytes):
            yield piece

    async def __aenter__(self) -> "CannedResponse":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None
