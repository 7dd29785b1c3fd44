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


class Unreadable(Exception):
    """There is no whole body; the message says why, and `status` in HTTP's words."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Post = Callable[[bytes], Coroutine[Any, Any, Answer]]
"""Answers the body of a POST, and never fails."""
ReadBody = Callable[[], Awaitable[bytes]]
"""Reads the body of a request. Raises `Unreadable`."""


class Responder(Protocol):
    """What a listener answers."""

    @property
    def posts(self) -> Mapping[str, Post]:
        """The answers to usual POSTs by path, which need no more than the body."""

    async def respond(self, request: web.BaseRequest, read_body: ReadBody) -> web.Response:
        """The answer to any request."""

    def is_draining(self) -> bool:
        """Whether each answer is to end its connection."""


class PostRoutes:
    """A service of POST requests on the paths of `routes`."""

    def __init__(self, routes: Mapping[str, Route], *, draining: Callable[[], bool]) -> None:
        self.posts: Mapping[str, Post] = {path: functools.partial(_answer, route) for path, route in routes.items()}
        self.is_draining = draining
        self._routes = routes

    async def respond(self, request: web.BaseRequest, read_body: ReadBody) -> web.Response:
        """As `Responder` has it."""
        route = self._routes.get(request.path)
        if route is None:
            return _problem(404, f"there is no such path; there is {', '.join(self._routes)}")
        if request.method != "POST":
            response = _problem(405, "this path takes POST")
            response.headers["Allow"] = "POST"
            return response
        started = time.perf_counter()
        try:
            body = await read_body()
        except Unreadable as exc:
            answer = _rejected(route, exc.status, str(exc), started)
        else:
            answer = await _answer(route, body, started)
        response = web.Response(status=answer.status, body=answer.text, headers=_FIELDS)
        if answer.status == 503:
            response.headers["Retry-After"] = "1"
        return response


async def _answer(route: Route, body: bytes, started: float | None = None) -> Answer:
    started = started or time.perf_counter()
    try:
        reply = await route.answer(body)
    except InvalidRequest as exc:
        return _rejected(route, 400, str(exc), started)
    except Exception:
        # The scheduler and the API server need an answer.
        event_id = secrets.token_hex(8)
        log.exception("request.failed", endpoint=route.name, id=event_id)
        reply = Reply(route.fallback(body, event_id), "failed")
    _count(route.name, reply.outcome, started)
    return Answer(200, reply.body)


def _rejected(route: Route, status: int, why: str, started: float) -> Answer:
    log.warning("request.rejected", endpoint=route.name, status=status, why=why)
    _count(route.name, "bad_request", started)
    return Answer(status, problem_text(why))


def _count(endpoint: str, outcome: str, started: float) -> None:
    REQUESTS[endpoint][outcome].inc()
    SECONDS[endpoint].observe(time.perf_counter() - started)


def problem_text(why: str) -> bytes:
    """The JSON text of an answer that is none."""
    return msgspec.json.encode({"error": why})


def _problem(status: int, why: str) -> web.Response:
    return web.Response(status=status, body=problem_text(why), headers=_FIELDS)
