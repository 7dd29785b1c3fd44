"""Routes of the hot paths: which function answers each path, and what applies to all of them.

This file has the body limit, the check of the method, the answers to a bad body and to a defect of ours, and the
request metrics. A usual request, a POST as Go's and aiohttp's clients write it, whose answer is available without
waiting, is answered as its last byte arrives. It needs no task, no parser and no response object, which together cost
more than most decisions. `FastConnection` handles the framing of HTTP/1.1 for these (RFC 9112).
"""

import asyncio
import functools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from email.utils import formatdate

import msgspec
import structlog
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from extender.errors import InvalidRequest
from extender.metrics import counters, histogram
from extender.server.connection import HEAD_END, KEEP_ALIVE_SECONDS, Connection, Connections
from extender.tables import declare_cache

AnswerNowait = Callable[[str, bytes], bytes | None]
"""The JSON text that answers 200 to this body at this path; None leaves the request to aiohttp."""

_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# A head is accepted here only if it has no other fields than these, each on one line. Fields that frame a body in
# another way, end the connection or ask for more than an answer are not among them: Transfer-Encoding, Connection,
# Expect, Upgrade. `_read_head` also wants a Host, and no field twice. aiohttp refuses any other such head, so that both
# ways agree on what is a request. No text matches in two ways, and quantifiers are possessive: otherwise a head of many
# fields would take time exponential in their number.
_HEAD = re.compile(
    rb"(?-i:POST) (?P<path>/[!-~]*) (?-i:HTTP)/1\.1\r\n"
    rb"(?:(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n)*+"
    rb"Content-Length: ?(?P<length>[0-9]{1,12})\r\n"
    rb"(?:(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n)*+"
    rb"\r\n",
    re.IGNORECASE,
)
_UNUSUAL = ("", 0)
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n"
# A longer answer is passed to the transport beside its head instead of being copied behind it.
_COPIED_BYTES = 16 * 1024


class FastServer(web.Server):
    """aiohttp's low-level server, whose connections ask `answer_nowait` about requests at `paths` first.

    `closing` tells whether each answer ends its connection.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        paths: Container[str],
        answer_nowait: AnswerNowait,
        body_limit_bytes: int,
        closing: Callable[[], bool],
        request_factory: Callable[..., web.BaseRequest],
    ) -> None:
        super().__init__(handler, request_factory=request_factory)
        self.paths = paths
        self.answer_nowait = answer_nowait
        self.body_limit_bytes = body_limit_bytes
        self.closing = closing


class FastConnection(Connection):
    """One connection of a `FastServer`.

    It passes aiohttp whole requests, one by one, so that aiohttp has no half-read request when this class answers the
    next one. Once it has passed anything else, aiohttp answers all further requests.
    """

    __slots__ = ("_fast_server", "_head", "_is_aiohttps", "_missing_bytes", "_path", "_pieces")

    def __init__(self, server: FastServer, connections: Connections) -> None:
        super().__init__(server, connections)
        self._fast_server = server
        self._path, self._head = "", b""  # of a request that is incomplete
        self._pieces: list[bytes] = []  # of its body, which may have 100 MB: they are joined once, and not copied
        self._missing_bytes = 0  # of its body
        self._is_aiohttps = False

    def data_received(self, data: bytes) -> None:
        """Answers, keeps the data for later, or passes it to aiohttp. aiohttp calls this with no data to continue."""
        if self._missing_bytes and data:
            self._add_piece(data)
            return
        if self._is_aiohttps or not data:
            super().data_received(data)
            return
        start = data.find(HEAD_END, 0, _HEAD_BYTES) + len(HEAD_END)
        path, length = _read_head(data[:start]) if start >= len(HEAD_END) else _UNUSUAL
        server = self._fast_server
        if path not in server.paths or length > server.body_limit_bytes or len(data) > start + length:
            self._is_aiohttps = True
            super().data_received(data)
        elif len(data) < start + length:
            self._path, self._head, self._missing_bytes = path, data[:start], length
            self.connections.await_body(self)
            self._add_piece(data[start:])
        else:
            if not self.has_asked:
                self.end_request()
            self._answer(path, data[:start], data[start:])

    @property
    def awaits_body(self) -> bool:
        """As `Connection` has it."""
        return self._missing_bytes > 0 or super().awaits_body

    def answer_last(self, status: str, why: str) -> None:
        """As `Connection` has it."""
        self._collected()
        self._is_aiohttps = True
        super().answer_last(status, why)

    def _add_piece(self, data: bytes) -> None:
        """Keeps a part of a body, or answers the request if it is the last."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            self.receive(len(data))
            return
        self.end_request()
        if not self._missing_bytes:
            self._answer(self._path, self._head, self._collected())
        else:
            self._is_aiohttps = True
            self._pass_on(self._head, self._collected())

    def _collected(self) -> bytes:
        """Returns what was kept of a body, and drops it."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._missing_bytes = 0
        return body

    def _pass_on(self, head: bytes, body: bytes) -> None:
        """Passes a request to aiohttp; one of a few bytes in one piece, which costs it less."""
        if len(body) < _COPIED_BYTES:
            super().data_received(head + body)
        else:
            super().data_received(head)
            super().data_received(body)

    def _answer(self, path: str, head: bytes, body: bytes) -> None:
        """Answers one whole request, or passes it to aiohttp."""
        text = self._fast_server.answer_nowait(path, body) if self._is_idle() else None
        if text is None or self.transport is None:
            self._pass_on(head, body)
            return
        del body  # what is sent may be as large, and the transport may copy it
        closing = self._fast_server.closing()
        answered = _OK % (len(text), _CLOCK.line(), b"Connection: close\r\n" if closing else b"")
        if len(text) < _COPIED_BYTES:
            self.transport.write(answered + text)
        else:
            self.transport.writelines((answered, text))
            # Pauses us if the peer does not read; `writelines` of asyncio 3.12.0-8 and 3.13.0-1 omits it (gh-127655).
            self.transport.set_write_buffer_limits()
        if closing:
            self.force_close()
        else:
            self._next_keepalive_close_time = self._loop.time() + KEEP_ALIVE_SECONDS

    def _is_idle(self) -> bool:
        """Whether aiohttp has answered all requests it was passed, and the peer reads what is sent."""
        if self._close or self._force_close or self._paused:
            return False
        return not self._request_count or (self._waiter is not None and not self._waiter.done())


class _Clock:
    """Caches the line of the Date header, which changes once a second (RFC 9110, section 6.6.1)."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


_CLOCK = _Clock()


# The heads of one client differ only in Content-Length.
_HEADS = declare_cache("server.routes.heads", key="request head", rows=256, most_mb=1.5)


@functools.lru_cache(_HEADS.rows)
def _read_head(head: bytes) -> tuple[str, int]:
    """Path and body length of a request that can be answered here; `_UNUSUAL` for any other."""
    found = _HEAD.fullmatch(head)
    if not found:
        return _UNUSUAL
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return _UNUSUAL
    return found["path"].partition(b"?")[0].decode(), int(found["length"])


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
