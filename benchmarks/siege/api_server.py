"""An API server with what the service reads: nodes, namespaces, pending pods, pull secrets.

`python -m benchmarks.siege.api_server CORE NODES` prints a line when it listens, and ends when standard input is
closed. Why not kube-apiserver: what is measured is the service, and a real one, with its etcd, would need more of the
two cores than all that is here, would take minutes to be given 320 secrets of 10,000 entries, and has limits of its own
on what attackers can do. What the service reads from either is the same: lists, watches, a secret by name, and
reviews of its own rights.

Pods come by `POST /siege/pods`, one JSON document a line; watchers of pods are told of them.
"""

import asyncio
import base64
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from benchmarks.payloads import node
from benchmarks.siege.network import API_PORT, API_SERVER, HONEST_REGISTRIES, honest_host

PODS = "/siege/pods"
LOGIN = "login"
"""The pull secret with one login, which every namespace has."""
ENTRIES = 10_000
BOOKMARK_SECONDS = 30.0
_PENDING = 500  # pods that a new watch is told of first, the newest ones
_WAITING = 2_000  # events for one watcher; beyond them the oldest are lost, as a slow watcher is cut off
_BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'


class ApiServer:
    """Answers lists, watches and reads of secrets. All versions are 1, since nothing but pending pods changes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = [msgspec.Raw(msgspec.json.encode(node(index))) for index in range(nodes)]
        self._pending: deque[bytes] = deque(maxlen=_PENDING)
        self._watchers: set[asyncio.Queue[bytes]] = set()
        self._large, self._small = _secret(_large_logins()), _secret(_small_logins())

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        if request.path == PODS:
            self._announce(await request.read())
            return web.Response()
        if request.path.endswith("reviews"):
            return _review(msgspec.json.decode(await request.read()))
        if request.query.get("watch") == "true":
            return await self._watch(request)
        if "/secrets/" in request.path:
            body = self._small if request.path.endswith(f"/{LOGIN}") else self._large
            return web.Response(body=body, content_type="application/json")
        if request.path in ("/api/v1/nodes", "/api/v1/namespaces"):
            return self._list(request)
        return web.Response(status=404, body=b"{}", content_type="application/json")

    def _list(self, request: web.BaseRequest) -> web.Response:
        items = self._nodes if request.path == "/api/v1/nodes" else []
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(items) or 1)
        following = first + limit
        metadata = {"resourceVersion": "1", "continue": str(following) if following < len(items) else ""}
        body = msgspec.json.encode({"kind": "List", "metadata": metadata, "items": items[first:following]})
        return web.Response(body=body, content_type="application/json")

    def _announce(self, lines: bytes) -> None:
        for pod in lines.splitlines():
            event = b'{"type":"ADDED","object":%b}\n' % pod
            self._pending.append(event)
            for watcher in self._watchers:
                if watcher.full():
                    watcher.get_nowait()
                watcher.put_nowait(event)

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        is_of_pods = request.path == "/api/v1/pods"
        with self._watching() as events, contextlib.suppress(TimeoutError):
            for event in self._pending if is_of_pods else ():
                events.put_nowait(event)
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 3600)):
                while True:
                    await response.write(await _next(events) if is_of_pods else await _bookmark())
        return response

    @contextlib.contextmanager
    def _watching(self) -> Iterator[asyncio.Queue[bytes]]:
        events: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._watchers.add(events)
        try:
            yield events
        finally:
            self._watchers.remove(events)


def _review(review: dict[str, Any]) -> web.Response:
    """Answers a SelfSubjectAccessReview, of the service, that all is allowed."""
    body = msgspec.json.encode({**review, "status": {"allowed": True}})
    return web.Response(status=201, body=body, content_type="application/json")


async def _next(events: asyncio.Queue[bytes]) -> bytes:
    """Waits for an event and returns it with all that have come since; a bookmark if none comes for a while."""
    try:
        first = await asyncio.wait_for(events.get(), BOOKMARK_SECONDS)
    except TimeoutError:
        return _BOOKMARK
    return first + b"".join(events.get_nowait() for _ in range(events.qsize()))


async def _bookmark() -> bytes:
    await asyncio.sleep(BOOKMARK_SECONDS)
    return _BOOKMARK


def _large_logins() -> dict[str, object]:
    """Returns as many logins as fit into what the service reads of a secret, none of which serves the images."""
    return {f"{number:x}.io": {"auth": "YTpi"} for number in range(ENTRIES)}


def _small_logins() -> dict[str, object]:
    auth = base64.b64encode(b"honest:tenant").decode()
    return {honest_host(number): {"auth": auth} for number in range(len(HONEST_REGISTRIES))}


def _secret(logins: dict[str, object]) -> bytes:
    document = base64.b64encode(msgspec.json.encode({"auths": logins})).decode()
    return msgspec.json.encode(
        {"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": document}}
    )


async def _serve(nodes: int) -> None:
    runner = web.ServerRunner(web.Server(ApiServer(nodes).answer, access_log=None, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, API_SERVER, API_PORT, backlog=1024).start()
    print("true", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # watches are open


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    uvloop.run(_serve(int(sys.argv[2])))
