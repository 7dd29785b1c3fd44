"""POST requests: which function answers each path, what is counted of it, and the bytes of usual ones.

A usual request is written as Go's and aiohttp's clients write it; any other is read by aiohttp. Both ways agree on what
is a request: a fuzzer compares them.
"""

import asyncio
import functools
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol, TypeVarTuple

import msgspec
import structlog
from aiohttp import web

from extender.errors import InvalidRequest
from extender.metrics import counters, histogram

_Arguments = TypeVarTuple("_Arguments")

log = structlog.get_logger()

NAMES = ("filter", "prioritize", "preempt", "admission")
OUTCOMES = ("answered", "error", "bad_request", "failed")
REQUESTS = counters(
    "multiarch_requests_total",
    "Requests by endpoint and outcome; error: the answer is one; failed: a bug.",
    ("endpoint", NAMES),
    ("outcome", OUTCOMES),
)
SECONDS = histogram(
    "multiarch_request_duration_seconds",
    "Time from the request's headers to its answer.",
    "endpoint",
    NAMES,
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

_FIELDS = {"Content-Type": "application/json", "Server": "multiarch-extender"}  # aiohttp would send its version


class Reply(msgspec.Struct, frozen=True):
    """An answer as JSON bytes; `outcome` is one of OUTCOMES."""

    body: bytes
    outcome: str = "answered"


class Route(msgspec.Struct, frozen=True):
    """The functions that answer one path.

    After a defect of ours `fallback` gives the answer that does least harm; it takes the body and the id of the log
    event.
    """

    name: str
    answer: Callable[[bytes], Awaitable[Reply]]
    fallback: Callable[[bytes, str], bytes]


class Answer(msgspec.Struct, frozen=True):
    """A status, and the JSON text that comes with it."""

    status: int
    text: bytes


Post = Callable[[bytes], Coroutine[Any, Any, Answer]]
"""Answers the body of a POST, and never fails."""


class Responder(Protocol):
    """What a listener answers."""

    @property
    def posts(self) -> Mapping[str, Post]:
        """The answers to usual POSTs by path, which need no more than the body."""

    async def respond(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """The answer to any request."""

    def is_draining(self) -> bool:
        """Whether each answer is to end its connection."""


class PostRoutes:
    """A service of POST requests on the paths of `routes`."""

    def __init__(
        self, routes: Mapping[str, Route], *, draining: Callable[[], bool], token_bytes: Callable[[int], bytes]
    ) -> None:
        self.posts: Mapping[str, Post] = {
            path: functools.partial(_answer, route, token_bytes) for path, route in routes.items()
        }
        self.is_draining = draining

    async def respond(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """As `Responder` has it."""
        post = self.posts.get(request.path)
        if post is None:
            return response_of(problem(404, f"there is no such path; there is {', '.join(self.posts)}"))
        if request.method != "POST":
            return response_of(problem(405, "this path takes POST"), Allow="POST")
        return response_of(await post(body))


async def _answer(route: Route, token_bytes: Callable[[int], bytes], body: bytes) -> Answer:
    started = time.perf_counter()
    try:
        reply = await route.answer(body)
        answer = Answer(200, reply.body)
        outcome = reply.outcome
    except InvalidRequest as exc:
        log.warning("request.rejected", endpoint=route.name, status=400, why=str(exc))
        answer = problem(400, str(exc))
        outcome = "bad_request"
    except Exception:
        # The scheduler and the API server need an answer.
        event_id = token_bytes(8).hex()
        log.exception("request.failed", endpoint=route.name, id=event_id)
        answer = Answer(200, route.fallback(body, event_id))
        outcome = "failed"
    REQUESTS[route.name][outcome].inc()
    SECONDS[route.name].observe(time.perf_counter() - started)
    return answer


def after_answer(work: Callable[[*_Arguments], None], *arguments: *_Arguments) -> None:
    """Has the event loop do this once the answer that is made at present is written.

    A line of the log is a system call. Counting takes less than the turn of the event loop for it would.
    """
    asyncio.get_running_loop().call_soon(work, *arguments)


def problem(status: int, why: str) -> Answer:
    """An answer that says why there is no other."""
    return Answer(status, msgspec.json.encode({"error": why}))


def response_of(answer: Answer, **fields: str) -> web.Response:
    """The answer as aiohttp sends it, with these header fields too."""
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        fields["Retry-After"] = "1"
    return web.Response(status=answer.status, body=answer.text, headers=_FIELDS | fields)


_HEAD_END = b"\r\n\r\n"
_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# A head is usual only if it has no other fields than these, each on one line. Fields that frame a body in another way,
# end the connection or ask for more than an answer are not among them: Transfer-Encoding, Expect, Upgrade.
# `_parse` also wants a Host, and no field twice. aiohttp refuses any other such head, so that both ways agree on
# what is a request. No text matches in two ways, and quantifiers are possessive: otherwise a head of many fields would
# take time exponential in their number.
_FIELD = rb"(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n"
_HEAD = re.compile(
    rb"(?-i:POST) (?P<path>/[!-~]*) (?-i:HTTP)/1\.1\r\n(?:%b)*+Content-Length: ?(?P<length>[0-9]{1,12})\r\n(?:%b)*+\r\n"
    % (_FIELD, _FIELD),
    re.IGNORECASE,
)
# The heads of one client differ only in Content-Length.
_MOST_HEADS = 256  # 1.5 MB at most
_ANSWER = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"


def split_request(data: bytes) -> tuple[bytes, str, int] | None:
    """The head with which the data begin, its path, and the length of the body behind it; None if it is not usual."""
    end = data.find(_HEAD_END, 0, _HEAD_BYTES)
    if end < 0:
        return None
    head = data[: end + len(_HEAD_END)]
    parsed = _parse(head)
    return (head, *parsed) if parsed else None


def head_of_answer(status: int, length: int, *, is_closing: bool) -> bytes:
    """The head of an answer with so much JSON; `is_closing` says that the connection ends."""
    fields = _date_field(int(time.time()))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        fields += b"Retry-After: 1\r\n"
    if is_closing:
        fields += b"Connection: close\r\n"
    phrase = b"OK" if status == 200 else HTTPStatus(status).phrase.encode()
    return _ANSWER % (status, phrase, length, fields)


@functools.lru_cache(_MOST_HEADS)
def _parse(head: bytes) -> tuple[str, int] | None:
    found = _HEAD.fullmatch(head)
    if not found:
        return None
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return None
    return found["path"].partition(b"?")[0].decode(), int(found["length"])


@functools.lru_cache(1)
def _date_field(second: int) -> bytes:
    """The Date of answers in this second (RFC 9110, section 6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
