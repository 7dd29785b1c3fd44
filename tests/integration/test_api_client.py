"""The tests' own client of the Kubernetes API: how a watch ends."""

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from testbed.api_client import ApiClient

PODS = {"kind": "APIResourceList", "resources": [{"name": "pods", "kind": "Pod", "namespaced": True, "verbs": []}]}
LINES = [
    {"type": "ADDED", "object": {"metadata": {"name": "one"}}},
    {"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "code": 410, "message": "too old"}},
    {"type": "ADDED", "object": {"metadata": {"name": "two"}}},
]


async def test_an_error_ends_a_watch_as_its_end_does() -> None:
    """Its object is a Status and has no name: whoever follows pods begins another watch."""

    async def discover(_: web.Request) -> web.Response:
        return web.json_response(PODS)

    async def watch(_: web.Request) -> web.Response:
        return web.Response(body=b"".join(msgspec.json.encode(line) + b"\n" for line in LINES))

    application = web.Application()
    application.router.add_get("/api/v1", discover)
    application.router.add_get("/api/v1/pods", watch)
    async with TestServer(application) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        client = ApiClient(session, str(server.make_url("/")))
        assert [found["metadata"]["name"] async for _, found in client.watch("Pod")] == ["one"]
