"""A stand-in for the Kubernetes API server on loopback, with what list and watch need.

It keeps objects and their history under one increasing version, lists in pages of one version, and watches with
selectors and a bookmark after each minute of silence. It compacts its history and fails on demand.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from aiohttp import web

Document = dict[str, Any]
Kind = Literal["get", "list", "watch", "send"]
LABELS = "metadata.labels "
BOOKMARK_SECONDS = 60.0
WORKLOADS = tuple(f"/apis/apps/v1/{kind}" for kind in ("deployments", "daemonsets", "statefulsets"))
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
COLLECTIONS = ("/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", *WORKLOADS, WEBHOOKS)


@dataclass(frozen=True)
class Request:
    """A request as it was received."""

    kind: Kind
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""


@dataclass(frozen=True)
class Change:
    """One change in the history: an object before (None: created) and after it (None: deleted)."""

    version: int
    path: str
    before: Document | None
    after: Document | None

    def event(self, selector: str) -> bytes | None:
        """Returns the watch event of this change for a watcher with `selector`, if it gets one."""
        before, after = is_selected(self.before, selector), is_selected(self.after, selector)
        if not (before or after):
            return None
        kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
        return event(kind, versioned(self.after or self.before or {}, self.version))


@dataclass
class Watcher:
    """An open watch. None ends it in good order, an exception by breaking the connection.

    One that `is_dead` brings no byte any more and does not end, as behind a router that has forgotten the connection.
    """

    path: str
    selector: str
    is_dead: bool = False
    outgoing: "asyncio.Queue[bytes | ConnectionError | None]" = field(default_factory=asyncio.Queue)


class Refusal(Exception):
    """Ends a request with a Status, or with a text that is none."""

    def __init__(
        self, code: int, message: str = "refused as told", headers: Mapping[str, str] | None = None, text: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.text = text
        self.headers = headers


class ApiServer:
    """The state of the cluster, with methods by which a test changes it or makes it fail."""

    def __init__(self) -> None:
        self.url = ""
        self.stop: Callable[[], Awaitable[None]]
        self.requests: list[Request] = []
        self.tokens: set[str] = set()  # that are accepted; if empty, requests need no token
        self.refusals: list[tuple[Kind | Literal["patch"], Refusal]] = []  # one for the next request of its kind
        self.forbidden: set[tuple[str, str]] = set()  # verb and resource, as answered to who asks for its own rights
        self.denied: set[str] = set()  # paths that nobody may read
        self.mute: set[str] = set()  # paths whose new watches are dead from their beginning
        self.on_patch: Callable[[Request], Awaitable[None]] | None = None  # called before each; may refuse or cut it
        self.is_open = asyncio.Event()  # while it is cleared, lists and gets wait
        self.is_open.set()
        self.change_seconds = 0.0  # what each change takes, one after the other
        self._changing = asyncio.Lock()
        self.admit: Callable[[Document], Document] | None = None  # what admission makes of an object of a dry run
        self._objects: dict[tuple[str, str], Document] = {}
        self._history: list[Change] = []
        self._watchers: list[Watcher] = []
        self._snapshots: dict[tuple[int, str], list[Document]] = {}  # by version and what is selected
        self._version = 100
        self._oldest = 100

    def put(self, path: str, document: Document) -> None:
        self._change(path, document["metadata"]["name"], document)

    def remove(self, path: str, name: str) -> None:
        self._change(path, name, None)

    def send(self, path: str, line: bytes | ConnectionError | None) -> None:
        """Sends a line of the test's own, or an end, to every watch of `path`."""
        for watcher in self.watchers(path):
            watcher.outgoing.put_nowait(line)

    def bookmark(self, path: str) -> None:
        self.send(path, self._bookmark())

    def cut_off(self, *paths: str) -> None:
        """Has all open watches of these paths brought nothing from now on, and never ended."""
        for watcher in self._watchers:
            watcher.is_dead |= watcher.path in paths

    def compact(self) -> None:
        """Drops all history, so that older versions and unfinished lists are gone."""
        self._history.clear()
        self._snapshots.clear()
        self._oldest = self._version

    def watchers(self, path: str) -> list[Watcher]:
        return [watcher for watcher in self._watchers if watcher.path == path]

    def received(self, kind: Kind) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    def objects(self, path: str) -> dict[str, Document]:
        """Returns the objects of a collection by name."""
        return {name: found for (where, name), found in self._objects.items() if where == path}

    def find(self, path: str, name: str) -> Document:
        return self._objects[path, name]

    def answer(self, request: Request) -> Document:
        """Answers a request for one object, or of a change, without a connection. Raises Refusal."""
        self.requests.append(request)
        self._admit(request)
        return self._send(request) if request.kind == "send" else self._get(request)

    async def handle(self, received: web.BaseRequest) -> web.StreamResponse:
        body = await received.read()
        request = Request(
            request_kind(received), received.path, dict(received.query), dict(received.headers), received.method, body
        )
        self.requests.append(request)
        try:
            self._admit(request)
            if request.kind == "watch":
                return await self._watch(request, received)
            await self.is_open.wait()
            if request.kind == "send":
                if self.on_patch and request.method == "PATCH":
                    await self.on_patch(request)
                async with self._changing:
                    await asyncio.sleep(self.change_seconds)
                return web.json_response(self._send(request), status=201 if request.method == "POST" else 200)
            return web.json_response(self._list(request) if request.kind == "list" else self._get(request))
        except Refusal as refusal:
            if refusal.text:
                return web.Response(text=refusal.text, status=refusal.code)
            status = {"kind": "Status", "code": refusal.code, "message": str(refusal)}
            return web.json_response(status, status=refusal.code, headers=refusal.headers)
        except ConnectionError:
            assert received.transport is not None
            received.transport.abort()
            return web.Response()

    def _change(self, path: str, name: str, after: Document | None) -> None:
        self._version += 1
        before = self._objects.pop((path, name), None)
        if after is not None:
            self._objects[path, name] = versioned(after, self._version)
        change = Change(self._version, path, before, after)
        self._history.append(change)
        for watcher in self.watchers(path):
            if (line := change.event(watcher.selector)) is not None:
                watcher.outgoing.put_nowait(line)

    def _admit(self, request: Request) -> None:
        if self.tokens and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise Refusal(401, "Unauthorized")
        if request.path in self.denied:
            raise Refusal(403, "Forbidden")
        for index, (kind, refusal) in enumerate(self.refusals):
            if kind == request.kind or (kind == "patch" and request.method == "PATCH"):
                del self.refusals[index]
                raise refusal

    def _send(self, request: Request) -> Document:
        """Creates or deletes an object, or changes the fields that a merge patch or a strategic merge patch names."""
        if request.method == "DELETE":
            found = self._get(request)
            self.remove(request.path.rpartition("/")[0], found["metadata"]["name"])
            return found
        document: Document = json.loads(request.body)
        if document.get("kind") == "SelfSubjectAccessReview":
            wanted = document["spec"]["resourceAttributes"]
            return document | {"status": {"allowed": (wanted["verb"], wanted["resource"]) not in self.forbidden}}
        if request.query.get("dryRun") == "All":
            return self.admit(document) if self.admit else document
        if request.method == "POST":
            name = document["metadata"].get("name") or f"{document['metadata']['generateName']}{self._version}"
            if (request.path, name) in self._objects:
                raise Refusal(409, f'"{name}" already exists')
            self.put(request.path, document | {"metadata": document["metadata"] | {"name": name}})
            return self._objects[request.path, name]
        path, _, name = collection_path(request.path).rpartition("/")
        before = self._get(request)
        wanted, found = document.get("metadata", {}), before["metadata"]
        if wanted.get("uid", found.get("uid")) != found.get("uid"):
            raise Refusal(422, "metadata.uid: Invalid value: field is immutable")
        if wanted.get("resourceVersion", found["resourceVersion"]) != found["resourceVersion"]:
            raise Refusal(409, "Operation cannot be fulfilled: the object has been modified")
        self.put(path, merged(before, document))
        return self._objects[path, name]

    def _get(self, request: Request) -> Document:
        path, _, name = collection_path(request.path).rpartition("/")
        try:
            return self._objects[path, name]
        except KeyError:
            raise Refusal(404, f'"{name}" not found') from None

    def _list(self, request: Request) -> Document:
        selector, limit = selector_of(request), int(request.query.get("limit", "100000"))
        selected = f"{request.path}?{selector}"
        version, offset = map(int, request.query.get("continue", f"{self._version}:0").split(":"))
        if offset == 0:
            collection, namespace = listed_collection(request.path)
            found = [
                document
                for (path, _), document in self._objects.items()
                if path == collection and namespace in ("", document["metadata"].get("namespace"))
            ]
            self._snapshots[version, selected] = [document for document in found if is_selected(document, selector)]
        if (version, selected) not in self._snapshots:
            raise Refusal(410, "The provided continue parameter is too old")
        items = self._snapshots[version, selected]
        meta = {"resourceVersion": str(version)}
        if offset + limit < len(items):
            meta["continue"] = f"{version}:{offset + limit}"
        return {"metadata": meta, "items": items[offset : offset + limit]}

    async def _watch(self, request: Request, received: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(received)
        with self._watching(request) as watcher:
            while (line := await self._next_line(watcher)) is not None or watcher.is_dead:
                if watcher.is_dead or line is None:
                    continue
                if isinstance(line, ConnectionError):
                    assert received.transport is not None
                    received.transport.abort()
                    return response
                await response.write(line)
        return response

    async def _next_line(self, watcher: Watcher) -> bytes | ConnectionError | None:
        try:
            async with asyncio.timeout(BOOKMARK_SECONDS):
                return await watcher.outgoing.get()
        except TimeoutError:
            return self._bookmark()

    def _bookmark(self) -> bytes:
        return event("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    @contextmanager
    def _watching(self, request: Request) -> Iterator[Watcher]:
        watcher = Watcher(request.path, selector_of(request), request.path in self.mute)
        since = int(request.query["resourceVersion"])
        if since == 0:  # any version: all objects, then the changes
            for (path, _), document in self._objects.items():
                if path == request.path and is_selected(document, watcher.selector):
                    watcher.outgoing.put_nowait(event("ADDED", document))
            since = self._version
        if since < self._oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old version: {since}"}
            watcher.outgoing.put_nowait(event("ERROR", status))
            watcher.outgoing.put_nowait(None)
        for change in self._history:
            is_news = change.path == request.path and change.version > since
            if is_news and (line := change.event(watcher.selector)) is not None:
                watcher.outgoing.put_nowait(line)
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)


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


def request_kind(request: web.BaseRequest) -> Kind:
    if request.method != "GET":
        return "send"
    if listed_collection(request.path)[0] not in COLLECTIONS:
        return "get"
    return "watch" if request.query.get("watch") == "true" else "list"


def selector_of(request: Request) -> str:
    """Returns both selectors of a list or watch as one, labels by their path in the object."""
    labels = filter(None, request.query.get("labelSelector", "").split(","))
    fields = filter(None, request.query.get("fieldSelector", "").split(","))
    return ",".join([*fields, *(f"{LABELS}{label}" for label in labels)])


def listed_collection(path: str) -> tuple[str, str]:
    """Returns the collection of which the path is a list, and the namespace that is listed; of all if empty."""
    found = re.fullmatch(r"(/api/v1|/apis/apps/v1)/namespaces/([^/]+)/([^/]+)", path)
    return (f"{found[1]}/{found[3]}", found[2]) if found else (path, "")


def collection_path(path: str) -> str:
    """Returns the path of an object of `COLLECTIONS` without its namespace, as objects are kept here."""
    return re.sub(r"^/api/v1/namespaces/[^/]+/pods/", "/api/v1/pods/", path)


def merged(before: Any, change: Any) -> Any:
    """Returns the document after a patch: null removes a key, `$patch: delete` the item of that name."""
    if isinstance(change, list) and any("$patch" in item for item in change):
        gone = {item["name"] for item in change if item.get("$patch") == "delete"}
        return [item for item in before or [] if item["name"] not in gone]
    if not isinstance(change, dict):
        return change
    kept = before if isinstance(before, dict) else {}
    changed = {key: merged(kept.get(key), value) for key, value in change.items() if value is not None}
    return {key: value for key, value in kept.items() if key not in change} | changed


def event(kind: str, document: Document) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def versioned(document: Document, version: int) -> Document:
    """Returns the object with `version` as its resourceVersion."""
    return document | {"metadata": document["metadata"] | {"resourceVersion": str(version)}}


def is_selected(document: Document | None, selector: str) -> bool:
    """Whether a field selector (`a.b=value,c!=value,…`) selects the object; an absent field is empty."""
    if document is None:
        return False
    for clause in filter(None, selector.split(",")):
        if clause.startswith(f"{LABELS}!"):
            if clause.removeprefix(f"{LABELS}!") in document["metadata"].get("labels", {}):
                return False
            continue
        path, _, wanted = clause.replace("!=", "=").partition("=")
        value: Any = document
        if path.startswith(LABELS):
            value = document["metadata"].get("labels", {}).get(path.removeprefix(LABELS), "")
        else:
            for step in path.split("."):
                value = value.get(step, {})
        if ((value or "") == wanted) is ("!=" in clause):
            return False
    return True


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
