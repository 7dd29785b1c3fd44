"""Routes of the hot paths: which function answers each path, and what applies to all of them.

This file has the check of the method, the answers to a bad body and to a defect of ours, and the request metrics.
"""

import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from extender.errors import InvalidRequest
from extender.metrics import counters, histogram

log = structlog.get_logger()

NAMES = ("filter", "prioritize", "preempt", "admission")
OUTCOMES = ("answered", "error", "bad_request", "failed")
REQUESTS = counters(
    "multiarch_requests_total",
    "Requests by endpoint and outcome: answered, error (an answer that says so), bad_request, failed (our mistake).",
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

    def __init__(self, routes: Mapping[str, Route], *, draining: Callable[[], bool]) -> None:
        self.posts: Mapping[str, Post] = {path: functools.partial(_answer, route) for path, route in routes.items()}
        self.is_draining = draining

    async def respond(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """As `Responder` has it."""
        post = self.posts.get(request.path)
        if post is None:
            return response_of(problem(404, f"there is no such path; there is {', '.join(self.posts)}"))
        if request.method != "POST":
            return response_of(problem(405, "this path takes POST"), Allow="POST")
        return response_of(await post(body))


async def _answer(route: Route, body: bytes) -> Answer:
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
        event_id = secrets.token_hex(8)
        log.exception("request.failed", endpoint=route.name, id=event_id)
        answer = Answer(200, route.fallback(body, event_id))
        outcome = "failed"
    REQUESTS[route.name][outcome].inc()
    SECONDS[route.name].observe(time.perf_counter() - started)
    return answer


def problem(status: int, why: str) -> Answer:
    """An answer that says why there is no other."""
    return Answer(status, msgspec.json.encode({"error": why}))


def response_of(answer: Answer, **fields: str) -> web.Response:
    """The answer as aiohttp sends it, with these header fields too."""
    return web.Response(status=answer.status, body=answer.text, headers=_FIELDS | fields)
