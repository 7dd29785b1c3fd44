"""Answers GET requests of callers who show a bearer token; who they are is decided elsewhere."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog
from aiohttp import web

from extender.errors import ClusterError, ExtenderError
from extender.kubernetes.authentication_v1 import UserInfo
from extender.server.routes import REQUESTS, SECONDS

log = structlog.get_logger()

_MOST_QUERY = 8192


class RefusedCaller(ExtenderError):
    """An answer that tells nothing but why: `status` is its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Answer = Callable[[UserInfo, Mapping[str, str]], Awaitable[bytes]]
"""From the caller and the request's parameters to JSON. Raises RefusedCaller, and ClusterError if the cluster fails."""
Identify = Callable[[str, str], Awaitable[UserInfo | None]]
"""From a token and the caller's address to the caller; None for a token that is nobody's. Raises ClusterError."""


def authenticated_app(answers: Mapping[str, Answer], identify: Identify) -> web.Application:
    """An application with a GET for each path of `answers`, whose name is the path's without its slash."""
    app = web.Application(client_max_size=0)
    for path, answer in answers.items():
        app.router.add_get(path, _handler(path.strip("/"), answer, identify), allow_head=False)
    return app


def _handler(name: str, answer: Answer, identify: Identify) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        started = time.perf_counter()
        outcome, headers = "error", dict[str, str]()
        try:
            user = await _identify(request, identify)
            status, body, outcome = 200, await answer(user, _parameters(request)), "answered"
        except RefusedCaller as exc:
            status, body = exc.status, _problem(str(exc))
            outcome = "bad_request" if status == 400 else "error"
            headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status, {})
        except ClusterError as exc:
            log.warning("caller.unchecked", endpoint=name, why=str(exc))
            status, body, headers = 503, _problem("the cluster cannot be asked now; try again"), {"Retry-After": "1"}
        except Exception:
            event_id = secrets.token_hex(8)
            log.exception("request.failed", endpoint=name, id=event_id)
            status, body, outcome = 500, _problem(f"internal error {event_id}; see the log"), "failed"
        REQUESTS[name][outcome].inc()
        SECONDS[name].observe(time.perf_counter() - started)
        own = {"Content-Type": "application/json", "Server": "multiarch-extender", "Cache-Control": "no-store"}
        return web.Response(status=status, body=body, headers={**own, **headers})

    return handle


async def _identify(request: web.Request, identify: Identify) -> UserInfo:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    user = await identify(token.strip(), request.remote or "") if scheme.lower() == "bearer" else None
    if user is None:
        raise RefusedCaller(401, "send a token of this cluster: Authorization: Bearer TOKEN")
    return user


def _parameters(request: web.Request) -> Mapping[str, str]:
    if len(request.query_string) > _MOST_QUERY:
        raise RefusedCaller(400, f"the query has more than {_MOST_QUERY} characters")
    for key in request.query:
        if len(request.query.getall(key)) > 1:
            raise RefusedCaller(400, f"{key} is given more than once")
    return dict(request.query)


def _problem(why: str) -> bytes:
    return msgspec.json.encode({"error": why})
