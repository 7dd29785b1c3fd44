"""Routes of the hot paths: which function answers each path, and what applies to all of them.

This file has the body limit, the check of the method, the answers to a bad body and to a defect of ours, and the
request metrics. `fast_lane.py` sends answers that need no waiting.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from extender.errors import InvalidRequest
from extender.metrics import counters, histogram
from extender.server.fast_lane import FastServer

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


class Reply(msgspec.Struct, frozen=True):
    """An answer as JSON bytes; `outcome` is one of OUTCOMES."""

    body: bytes
    outcome: str = "answered"


class Route(msgspec.Struct, frozen=True):
    """The functions that answer one path.

    `answer_nowait` gives the answer if that takes no waiting, else None. `answer` is called after None, and also after
    an InvalidRequest, which it must raise again. After a defect of ours `fallback` gives the answer that does least
    harm; it takes the body and the id of the log event.
    """

    name: str
    answer: Callable[[bytes], Awaitable[Reply]]
    fallback: Callable[[bytes, str], bytes]
    answer_nowait: Callable[[bytes], Reply | None] = lambda _body: None


class _Unreadable(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def route_server(
    routes: Mapping[str, Route],
    *,
    body_limit_bytes: int,
    draining: Callable[[], bool],
) -> FastServer:
    """A server for POST requests on the paths of `routes`. While `draining()`, each answer ends its connection."""
    loop = asyncio.get_running_loop()

    def answer_nowait(path: str, body: bytes) -> bytes | None:
        route = routes[path]
        started = time.perf_counter()
        reply = _reply_nowait(route, body)
        if reply is None:
            return None
        _count(route.name, reply.outcome, time.perf_counter() - started)
        return reply.body

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        route = routes.get(request.path)
        if route is None:
            response = _problem(404, f"there is no such path; there is {', '.join(routes)}")
        elif request.method != "POST":
            response = _problem(405, "this path takes POST")
            response.headers["Allow"] = "POST"
        else:
            response = await _answer(route, request, body_limit_bytes)
        if draining() or not request.content.is_eof():
            response.force_close()
        return response

    def make_request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=body_limit_bytes)

    return FastServer(
        handle,
        paths=routes,
        answer_nowait=answer_nowait,
        body_limit_bytes=body_limit_bytes,
        closing=draining,
        request_factory=make_request,
    )


def _reply_nowait(route: Route, body: bytes) -> Reply | None:
    try:
        return route.answer_nowait(body)
    except InvalidRequest:  # `_answer` gets the same error and answers it
        return None
    except Exception as exc:  # noqa: BLE001  # it is logged there
        return _failed(route, body, exc)


async def _answer(route: Route, request: web.BaseRequest, body_limit_bytes: int) -> web.Response:
    started = time.perf_counter()
    body = b""
    try:
        body = await _read_body(request, body_limit_bytes)
        reply = await route.answer(body)
    except (_Unreadable, InvalidRequest) as exc:
        status = exc.status if isinstance(exc, _Unreadable) else 400
        log.warning("request.rejected", endpoint=route.name, status=status, why=str(exc))
        response, outcome = _problem(status, str(exc)), "bad_request"
    except Exception as exc:  # noqa: BLE001  # it is logged there
        reply = _failed(route, body, exc)
        response, outcome = _json(200, reply.body), reply.outcome
    else:
        response, outcome = _json(200, reply.body), reply.outcome
    _count(route.name, outcome, time.perf_counter() - started)
    return response


def _count(endpoint: str, outcome: str, seconds: float) -> None:
    REQUESTS[endpoint][outcome].inc()
    SECONDS[endpoint].observe(seconds)


def _failed(route: Route, body: bytes, exc: Exception) -> Reply:
    """Logs a defect of ours; gives the fallback answer, since the scheduler and the API server need one."""
    event_id = secrets.token_hex(8)
    log.error("request.failed", endpoint=route.name, id=event_id, exc_info=exc)
    return Reply(route.fallback(body, event_id), "failed")


async def _read_body(request: web.BaseRequest, limit_bytes: int) -> bytes:
    """The body, once it is whole."""
    left_bytes = limit_bytes - (request.content_length or 0)
    pieces: list[bytes] = []
    try:
        while left_bytes >= 0 and (piece := await request.content.readany()):
            pieces.append(piece)
            left_bytes -= 0 if request.content_length else len(piece)
    except (web.RequestPayloadError, ConnectionError) as exc:
        raise _Unreadable(400, "the body is not what its headers say, or ended early") from exc
    if left_bytes < 0:
        raise _Unreadable(413, f"the body is larger than {limit_bytes} bytes")
    return b"".join(pieces)


def _problem(status: int, why: str) -> web.Response:
    return _json(status, msgspec.json.encode({"error": why}))


def _json(status: int, text: bytes) -> web.Response:
    headers = {"Content-Type": "application/json", "Server": "multiarch-extender"}  # aiohttp would send its version
    return web.Response(status=status, body=text, headers=headers)
