"""The worlds' kube-apiserver on loopback, with what a test puts in the way of single requests.

`tests/worlds/api_server.py` and its neighbours say what it knows. Here are tokens, refusals and delays of requests, and
lines of a watch that no API server sends.
"""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from aiohttp import web

from testbed import memory_http
from testbed.memory_http import Response
from testbed.memory_network import MemoryLoop, Network
from tests.worlds import api_server
from tests.worlds.admission import completed
from tests.worlds.api_kinds import Target, target_of
from tests.worlds.api_requests import ApiRequests
from tests.worlds.api_storage import Watch, decode, encode, key_of
from tests.worlds.installation import put_in_place
from tests.worlds.trace import Trace

Document = dict[str, Any]
Kind = Literal["get", "list", "watch", "send"]
WORKLOADS = tuple(f"/apis/apps/v1/{kind}" for kind in ("deployments", "daemonsets", "statefulsets"))
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
FIRST_VERSION = "1001"
"""That of the first object that a test puts there."""


@dataclass(frozen=True)
class Request:
    """A request as it was received."""

    kind: Kind
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""


class Refusal(Exception):
    """Ends a request with a Status, or with a text that is none."""

    def __init__(
        self, code: int, message: str = "refused as told", headers: Mapping[str, str] | None = None, text: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.text = text
        self.headers = headers or {}

    def response(self) -> Response:
        status = {"kind": "Status", "code": self.code, "message": str(self)}
        return Response(self.code, self.text.encode() or encode(status), {**_JSON, **self.headers})


_JSON = {"Content-Type": "application/json"}


class _RealClocks(Network):
    """For a server in real time; nothing connects through it."""

    def wall_clock(self) -> float:
        return time.time()


class ApiServer:
    """The state of the cluster, with methods by which a test changes it or makes requests fail."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        network = loop.network if isinstance(loop, MemoryLoop) else _RealClocks(cast("MemoryLoop", loop), 0)
        chance = random.Random(0)
        self._api = api_server.ApiServer(network, Trace(loop.time), chance)
        self.faults = ApiRequests(self._api, chance, lambda _: "us")
        self.url = ""
        self.stop: Callable[[], Awaitable[None]]
        self.requests: list[Request] = []
        self.tokens: set[str] = set()  # that are accepted; if empty, requests need no token
        self.refusals: list[tuple[Kind | Literal["patch"], Refusal]] = []  # one for the next request of its kind
        self.denied: set[str] = set()  # paths that nobody may read
        self.on_patch: Callable[[Request], Awaitable[None]] | None = None  # called before each; may refuse or cut it
        self.is_open = asyncio.Event()  # while it is cleared, lists and gets wait
        self.is_open.set()
        self.change_seconds = 0.0  # what each change takes, one after the other
        self._changing = asyncio.Lock()
        self.admit: Callable[[Document], Document] | None = None  # what admission makes of an object of a dry run
        self.put("/api/v1/namespaces", namespace("default"))

    def put(self, path: str, document: Document) -> None:
        """Stores an object, a pod with its defaults; path is that of its collection, with or without a namespace."""
        target = _target(path)
        name = document["metadata"]["name"]
        if target.kind.name == "Pod":
            document = completed("Pod", document)
        ours = {"uid": f"uid-{name}", **({"namespace": target.namespace} if target.namespace else {})}
        put_in_place(self._api, target.kind.name, document | {"metadata": ours | document["metadata"]})

    def remove(self, path: str, name: str) -> None:
        self._api.storage.remove(_target(path).kind.name, key_of(self.find(path, name)))

    def send(self, path: str, line: bytes | ConnectionError | None) -> None:
        """Sends a line of the test's own to every watch of `path`, or ends it in good order or by an error."""
        for watch in self.watches(path):
            if line is None:
                watch.end()
            elif isinstance(line, bytes):
                watch.say(line)
            else:
                watch.cut()

    def cut_off(self, *paths: str) -> None:
        """Has all open watches of these paths brought nothing from now on, and never ended."""
        for watch in (each for path in paths for each in self.watches(path)):
            watch.is_dead = True

    def watches(self, path: str) -> list[Watch]:
        return self._api.storage.watches(_target(path).kind.name)

    def received(self, kind: Kind) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    def objects(self, path: str) -> dict[str, Document]:
        """The objects of a collection by name."""
        target = _target(path)
        found = (each.document for each in self._api.storage.all(target.kind.name, target.namespace))
        return {each["metadata"]["name"]: each for each in found}

    def find(self, path: str, name: str) -> Document:
        return self.objects(path)[name]

    async def answer(self, request: Request) -> Response:
        """Answers a request without a connection. Raises ConnectionError if it is cut."""
        self.requests.append(request)
        try:
            self._let_in(request)
            if request.kind != "watch":
                await self.is_open.wait()
            if request.kind == "send":
                await self._delay(request)
        except Refusal as refusal:
            return refusal.response()
        if self.admit and request.query.get("dryRun") == "All":
            return Response(201, encode(self.admit(decode(request.body))), _JSON)
        headers = {name.lower(): value for name, value in request.headers.items()}
        return await self.faults.answer(
            memory_http.Request(request.method, request.path, dict(request.query), headers, request.body, "")
        )

    async def handle(self, received: web.BaseRequest) -> web.StreamResponse:
        query, headers = dict(received.query), dict(received.headers)
        kind = _kind_of(received.method, received.path, query)
        request = Request(kind, received.path, query, headers, received.method, await received.read())
        try:
            response = await self.answer(request)
            if response.stream is None:
                return web.Response(body=response.body, status=response.status, headers=response.headers)
            streamed = web.StreamResponse(headers=response.headers)
            await streamed.prepare(received)
            async for line in response.stream:
                await streamed.write(line)
        except ConnectionError:
            assert received.transport is not None
            received.transport.abort()
            return web.Response()
        return streamed

    def _let_in(self, request: Request) -> None:
        if self.tokens and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise Refusal(401, "Unauthorized")
        if request.path in self.denied:
            raise Refusal(403, "Forbidden")
        for index, (kind, refusal) in enumerate(self.refusals):
            if kind == request.kind or (kind == "patch" and request.method == "PATCH"):
                del self.refusals[index]
                raise refusal

    async def _delay(self, request: Request) -> None:
        if self.on_patch and request.method == "PATCH":
            await self.on_patch(request)
        async with self._changing:
            await asyncio.sleep(self.change_seconds)


def _target(path: str) -> Target:
    found = target_of(path)
    assert found, path
    return found


def _kind_of(method: str, path: str, query: Mapping[str, str]) -> Kind:
    target = target_of(path)
    if method != "GET":
        return "send"
    if target is None or target.name:
        return "get"
    return "watch" if query.get("watch") == "true" else "list"


@asynccontextmanager
async def serve_api(ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    server = ApiServer()
    runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl_context)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url, server.stop = f"{'https' if ssl_context else 'http'}://{host}:{port}", runner.cleanup
    try:
        yield server
    finally:
        await runner.cleanup()


def write_kubeconfig(server: ApiServer, folder: Path) -> Path:
    """Writes a kubeconfig for this server into `folder`, without credentials."""
    return write_contexts(folder, {"x": (server, "")})


def write_contexts(folder: Path, contexts: Mapping[str, tuple[ApiServer, str]]) -> Path:
    """Writes a kubeconfig with these contexts, each with a server and a namespace; the first is the current one."""
    document = {
        "current-context": next(iter(contexts)),
        "contexts": [
            {"name": name, "context": {"cluster": name, **({"namespace": namespace} if namespace else {})}}
            for name, (_, namespace) in contexts.items()
        ],
        "clusters": [{"name": name, "cluster": {"server": server.url}} for name, (server, _) in contexts.items()],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def node(name: str, architecture: str = "amd64", **spec: Any) -> Document:
    """Returns a node as a kubelet registers it, with the fields that are read."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux"}},
        "spec": spec,
        "status": {"nodeInfo": {"architecture": architecture, "operatingSystem": "linux"}},
    }


def pod(name: str, image: str = "docker.io/library/busybox:1", node_name: str = "", phase: str = "Pending") -> Document:
    spec: Document = {"containers": [{"name": "main", "image": image}]}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": spec | ({"nodeName": node_name} if node_name else {}),
        "status": {"phase": phase},
    }


def namespace(name: str, **annotations: str) -> Document:
    """Returns a namespace; `mode="observe"` sets our annotation of that name."""
    ours = {f"multiarch-extender.io/{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "annotations": {"example.com/team": "a"} | ours}, "spec": {"finalizers": []}}


EVENTS = "/api/v1/namespaces/default/events"


def owned(found: Document, kind: str, name: str, api_version: str = "apps/v1") -> Document:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    return found | {"metadata": found["metadata"] | {"ownerReferences": [owner]}}


def told(api: ApiServer) -> list[Document]:
    return list(api.objects(EVENTS).values())
