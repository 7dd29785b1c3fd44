"""What a fuzz target is, and what targets share: an event loop, bounds on texts, a session that answers from memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

T = TypeVar("T")

# Sentences about wrong input end in logs, events and warnings. They quote at most a hundred characters of it.
SENTENCE_CHARACTERS = 1000


class Target(msgspec.Struct, frozen=True):
    """A parser of bytes from outside, and what holds for its result.

    `run` takes any bytes. It returns if the parser read or refused them as its documentation says, and raises anything
    if not. `words` are pieces from which the fuzzer composes inputs. `most_bytes` bounds the inputs it makes.
    """

    name: str
    run: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    most_bytes: int = 4096


class _Loop:
    """One event loop for all inputs of a process: opening one takes longer than most inputs do."""

    def __init__(self) -> None:
        self.runner: asyncio.Runner | None = None
        self.endings: list[Callable[[], None]] = []


_LOOP = _Loop()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, on the loop that all calls share until `close_loop`."""
    if _LOOP.runner is None:
        _LOOP.runner = asyncio.Runner()
    return _LOOP.runner.get_loop().run_until_complete(work)  # the runner's own would set a signal handler each time


def close_loop() -> None:
    """Ends what `at_end` names and closes the loop of `run`; the next call opens another one."""
    while _LOOP.endings:
        _LOOP.endings.pop()()
    if _LOOP.runner is not None:
        _LOOP.runner.close()
        _LOOP.runner = None


def at_end(ending: Callable[[], None]) -> None:
    """Has `close_loop` call this first, which closes something that is open for all inputs."""
    _LOOP.endings.append(ending)


async def settle(turns: int = 20) -> None:
    """Lets the loop run what is ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


def check_sentence(said: object, quoted_characters: int = 0) -> None:
    """Fails unless the text of an error is short enough for a log and an event, but for what it quotes of a file."""
    assert len(str(said)) <= SENTENCE_CHARACTERS + quoted_characters, str(said)[:200]


class CannedSession:
    """Stands for an `aiohttp.ClientSession`: each request gets the next of `bodies` with status 200, then the last."""

    def __init__(self, *bodies: bytes, headers: Mapping[str, str] | None = None, status: int = 200) -> None:
        self.requests: list[str] = []
        self._bodies = bodies
        self._headers = headers or {}
        self._status = status

    def request(self, method: str, url: object, **options: object) -> "CannedResponse":
        """The response to the next request; the arguments are as in aiohttp."""
        for name, value in _headers_of(options).items():
            if not {"\r", "\n", "\0"}.isdisjoint(value):
                raise ValueError(f"{name} is no header, says aiohttp")
        self.requests.append(f"{method} {url}")
        body = self._bodies[min(len(self.requests), len(self._bodies)) - 1]
        return CannedResponse(self._status, self._headers, body)


def _headers_of(options: Mapping[str, object]) -> Mapping[str, str]:
    headers = options.get("headers")
    return headers if isinstance(headers, Mapping) else {}


class CannedResponse:
    """A response whose body is in memory; its own content, and its own context."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = CIMultiDictProxy(CIMultiDict(headers))
        self._body = body

    @property
    def content(self) -> "CannedResponse":
        """The stream of the body."""
        return self

    async def read(self, most_bytes: int) -> bytes:
        """The next bytes of the body; none at its end."""
        piece, self._body = self._body[:most_bytes], self._body[most_bytes:]
        return piece

    async def iter_chunked(self, most_bytes: int) -> AsyncIterator[bytes]:
        """The body in pieces."""
        while piece := await self.read(most_bytes):
            yield piece

    async def __aenter__(self) -> "CannedResponse":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
