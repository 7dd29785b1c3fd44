"""Answers requests of callers who show a bearer token, or a client certificate; who they are is decided elsewhere."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog
from aiohttp import web

from extender.errors import ClusterError, ExtenderError
from extender.kubernetes.authentication_v1 import UserInfo
from extender.server.callers import caller_address
from extender.server.routes import REQUESTS, SECONDS

log = structlog.get_logger()

_MOST_QUERY = 8192
# A pod in etcd has 1.5 MiB at most, and its images are a small part of it. A listener has 64 connections at most, so
# that bodies take 8 MiB at most; only those of callers who have shown who they are, are read.
_MOST_BODY_BYTES = 128 * 1024
BODY_SECONDS = 5.0
# After it the connection of a caller that has not read its answer ends, and with it the answer's memory.
ANSWER_SECONDS = 10.0


class RefusedCaller(ExtenderError):
    """An answer that tells nothing but why: `status` is its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Answer = Callable[[UserInfo, Mapping[str, str]], Awaitable[bytes]]
"""From the caller and the request's parameters to JSON. Raises RefusedCaller, and ClusterError if the cluster fails."""
PostAnswer = Callable[[UserInfo, bytes], Awaitable[bytes]]
"""As `Answer`, from the caller and the request's body."""
Identify = Callable[[str, str], Awaitable[UserInfo | None]]
"""From a token and the caller's address, as `caller_address` has it, to the caller. None for a token that is nobody's.

Raises ClusterError.
"""


Problem = Callable[[str], bytes]
"""From why there is no answer to the body that says so."""


class Post(msgspec.Struct, frozen=True):
    """The answer to a POST, in the metrics of `name`.

    `certified` is the caller that a client certificate of the listener's optional authority stands for; None if only a
    token counts. `problem` writes why there is no answer.
    """

    name: str
    answer: PostAnswer
    certified: UserInfo | None = None
    problem: Problem = lambda why: msgspec.json.encode({"error": why})


def authenticated_app(
    answers: Mapping[str, Answer], identify: Identify, posts: Mapping[str, Post] | None = None
) -> web.Application:
    """An application with a GET for each path of `answers`, whose name is the path's without its slash, and `posts`."""
    app = web.Application(client_max_size=_MOST_BODY_BYTES)
    for path, answer in answers.items():
        app.router.add_get(path, _get_handler(path.strip("/"), answer, identify), allow_head=False)
    for path, post in (posts or {}).items():
        app.router.add_post(path, _post_handler(post, identify))
    return app


def _get_handler(name: str, answer: Answer, identify: Identify) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def work(request: web.Request) -> bytes:
        return await answer(await _identify(request, identify), _parameters(request))

    return _handler(name, work, lambda why: msgspec.json.encode({"error": why}))


def _post_handler(post: Post, identify: Identify) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def work(request: web.Request) -> bytes:
        has_certificate = post.certified is not None and bool(request.get_extra_info("peercert"))
        user = post.certified if has_certificate else None
        return await post.answer(user or await _identify(request, identify), await _body(request))

    return _handler(post.name, work, post.problem)


def _handler(
    name: str, work: Callable[[web.Request], Awaitable[bytes]], problem: Problem
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        started = time.perf_counter()
        outcome, headers = "error", dict[str, str]()
        try:
            status, body, outcome = 200, await work(request), "answered"
        except RefusedCaller as exc:
            status, body = exc.status, problem(str(exc))
            outcome = "bad_request" if status in (400, 408, 413) else "error"
            headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status, {})
        except ClusterError as exc:
            log.warning("caller.unchecked", endpoint=name, why=str(exc))
            status, body, headers = 503, problem("the cluster cannot be asked now; try again"), {"Retry-After": "1"}
        except Exception:
            event_id = secrets.token_hex(8)
            log.exception("request.failed", endpoint=name, id=event_id)
            status, body, outcome = 500, problem(f"internal error {event_id}; see the log"), "failed"
        REQUESTS[name][outcome].inc()
        SECONDS[name].observe(time.perf_counter() - started)
        own = {"Content-Type": "application/json", "Server": "multiarch-extender", "Cache-Control": "no-store"}
        response = web.Response(status=status, body=body, headers={**own, **headers})
        await _send(request, response)
        return response

    return handle


async def _send(request: web.Request, response: web.Response) -> None:
    """Sends the answer, and ends the connection of a caller that does not read it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        log.info("answer.unread", caller=request.remote, seconds=ANSWER_SECONDS)
        if request.transport:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller has gone, of which aiohttp takes note


async def _identify(request: web.Request, identify: Identify) -> UserInfo:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    user = await identify(token.strip(), caller_address(request.remote or "")) if is_bearer else None
    if user is None:
        raise RefusedCaller(401, "send a token of this cluster: Authorization: Bearer TOKEN")
    return user


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise RefusedCaller(413, f"the body has more than {_MOST_BODY_BYTES} bytes") from exc
    except TimeoutError as exc:
        raise RefusedCaller(408, f"the body has not arrived within {BODY_SECONDS:g} s") from exc
    except ConnectionError as exc:
        # The request keeps the error, whose frames know the request: the garbage collector would have to find the
        # circle, and what has arrived of the body would stay until then.
        exc.with_traceback(None)
        raise RefusedCaller(400, "the connection ended before the body did") from None


def _parameters(request: web.Request) -> Mapping[str, str]:
    if len(request.query_string) > _MOST_QUERY:
        raise RefusedCaller(400, f"the query has more than {_MOST_QUERY} characters")
    for key in request.query:
        if len(request.query.getall(key)) > 1:
            raise RefusedCaller(400, f"{key} is given more than once")
    return dict(request.query)
