"""kube-apiserver over HTTP, as our service asks it: paths, verbs, lists in pages, watches, rights, and its faults.

Sources: k8s.io/apiserver/pkg/endpoints (handlers, installer.go) and the API concepts page of kubernetes.io. Limits:
nobody logs in: a caller has the account that the world names; a right is there unless the world takes it away; `watch`
knows no sendInitialEvents.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from testbed.memory_http import Request, Response
from tests.worlds.api_errors import ApiError, bad_request, internal_error, not_found
from tests.worlds.api_kinds import BY_PLURAL, KINDS, Document, Target, target_of
from tests.worlds.api_server import APPLY_PATCH, ApiServer
from tests.worlds.api_storage import Stored, Watch, decode, encode
from tests.worlds.selectors import parse_selectors

_JSON = {"Content-Type": "application/json"}
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SHORTEST_WATCH, _LONGEST_WATCH = 1800.0, 3600.0  # --min-request-timeout, and twice that, where none is asked for
_METADATA = "as=PartialObjectMetadata"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Asked(msgspec.Struct):
    """A request: when it came, from which address, and what for. `status` is 0 while there is no answer.

    `verb` is the method where `resource` is nothing that the API server keeps, such as selfsubjectaccessreviews.
    """

    at: float
    caller: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int = 0


class ApiRequests:
    """Answers requests over HTTP to an ApiServer. Faults concern these alone."""

    def __init__(self, api: ApiServer, chance: random.Random, user: Callable[[str], str]) -> None:
        """`user` names the account of a caller's address."""
        self._api = api
        self._chance = chance
        self._user = user
        self._denied: dict[tuple[str, str], None] = {}
        self._silent: dict[str, None] = {}
        self._slow_seconds = 0.0
        self._error_rate = 0.0
        self.asked: list[Asked] = []
        """Every request, as it came."""

    # Faults, each until it is taken back. A resource is its plural or its kind.

    def deny(self, verb: str, resource: str, on: bool = True) -> None:
        """Takes away the right to `verb` the resource. Watches that are open go on."""
        _set(self._denied, (verb, _kind(resource)), on)

    def watch_silence(self, resource: str, on: bool = True) -> None:
        """Has watches bring nothing and never end; those that are open then stay so when it is taken back."""
        kind = _kind(resource)
        _set(self._silent, kind, on)
        if on:
            for watch in self._api.storage.watches(kind):
                watch.is_dead = True

    def watch_cut(self, resource: str) -> None:
        """Breaks the connections of watches."""
        for watch in self._api.storage.watches(_kind(resource)):
            watch.cut()

    def compact(self) -> None:
        """Forgets what was before: watches from then and lists that go on end with 410. Open watches go on."""
        self._api.storage.compact()

    def slow(self, seconds: float) -> None:
        """Has each request take so much longer; 0 ends it."""
        self._slow_seconds = seconds

    def errors(self, rate: float) -> None:
        """Answers a share of requests with 500; 0 ends it."""
        self._error_rate = rate

    def is_allowed(self, verb: str, kind: str) -> bool:
        """Whether the right is there."""
        return (verb, kind) not in self._denied

    async def answer(self, request: Request) -> Response:
        """The answer to one request, which is a Status for one that is refused."""
        asked = self._note_request(request)
        try:
            if self._slow_seconds:
                await asyncio.sleep(self._slow_seconds)
            self._fail_by_chance()
            response = await self._routed(request)
        except ApiError as exc:
            response = _refused(exc)
        asked.status = response.status
        return response

    def _note_request(self, request: Request) -> Asked:
        target, place = target_of(request.path), ("", "")
        if target:
            resource = f"{target.kind.plural}/{target.subresource}" if target.subresource else target.kind.plural
            verb, place = self._verb(request, target), (target.namespace, target.name)
        else:
            verb, resource = request.method, request.path.rpartition("/")[2]
        asked = Asked(self._api.time(), request.caller, verb, resource, *place)
        self.asked.append(asked)
        return asked

    def _fail_by_chance(self) -> None:
        if self._error_rate and self._chance.random() < self._error_rate:
            raise internal_error("etcdserver: request timed out")

    async def _routed(self, request: Request) -> Response:
        if request.path == _REVIEWS:
            return self._review(request)
        target = target_of(request.path)
        if target is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        verb = self._verb(request, target)
        user = self._user(request.caller)
        if not self.is_allowed(verb, target.kind.name):
            what = f'{target.kind.granted_as} is forbidden: User "{user}" cannot {verb} resource "{target.kind.plural}"'
            raise ApiError(403, "Forbidden", what)
        match verb:
            case "get":
                return self._get(request, target)
            case "list":
                return self._list(request, target)
            case "watch":
                return self._watch(request, target)
        return await self._write(request, target, user)

    def _verb(self, request: Request, target: Target) -> str:
        if request.method == "GET":
            return "get" if target.name else "watch" if request.query.get("watch") in ("true", "1") else "list"
        return _VERBS[request.method]

    def _review(self, request: Request) -> Response:
        """SelfSubjectAccessReview."""
        review = decode(request.body)
        asked = review["spec"]["resourceAttributes"]
        kind = BY_PLURAL.get(asked["resource"])
        is_allowed = kind is not None and self.is_allowed(asked["verb"], kind.name)
        return Response(201, encode(review | {"status": {"allowed": is_allowed}}), dict(_JSON))

    def _get(self, request: Request, target: Target) -> Response:
        stored = self._api.storage.find(target.kind.name, (target.namespace, target.name))
        if stored is None:
            raise not_found(target.kind, target.name)
        return Response(200, stored.encoded(metadata_only=_wants_metadata(request)), dict(_JSON))

    def _list(self, request: Request, target: Target) -> Response:
        query = request.query
        is_selected = parse_selectors(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        page = self._api.storage.list_page(
            target.kind.name, target.namespace, is_selected, int(query.get("limit") or 0), query.get("continue", "")
        )
        metadata: Document = {"resourceVersion": str(page.version)}
        if page.token:
            metadata |= {"continue": page.token, "remainingItemCount": page.remaining}
        partial = _wants_metadata(request)
        kind = "PartialObjectMetadataList" if partial else f"{target.kind.name}List"
        api_version = "meta.k8s.io/v1" if partial else target.kind.api_version
        head = encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})
        items = b",".join(stored.encoded(metadata_only=partial) for stored in page.items)
        return Response(200, b'%b,"items":[%b]}' % (head[:-1], items), dict(_JSON))

    def _watch(self, request: Request, target: Target) -> Response:
        query = request.query
        is_selected = parse_selectors(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        watch = self._api.storage.open_watch(
            target.kind.name,
            target.namespace,
            is_selected,
            query.get("resourceVersion", ""),
            metadata_only=_wants_metadata(request),
        )
        watch.is_dead = target.kind.name in self._silent
        seconds = float(query.get("timeoutSeconds") or self._chance.uniform(_SHORTEST_WATCH, _LONGEST_WATCH))
        has_bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        return Response(200, b"", dict(_JSON), self._lines(watch, seconds, has_bookmarks))

    async def _lines(self, watch: Watch, seconds: float, has_bookmarks: bool) -> AsyncIterator[bytes]:
        try:
            async for line in watch.lines(lambda: self._api.storage.version, seconds, has_bookmarks=has_bookmarks):
                yield line
        finally:
            self._api.storage.close_watch(watch)

    async def _write(self, request: Request, target: Target, user: str) -> Response:
        kind, namespace, name = target.kind.name, target.namespace, target.name
        dry_run = request.query.get("dryRun") == "All"
        manager = request.query.get("fieldManager") or request.headers.get("user-agent", "").split("/")[0]
        if request.method == "DELETE":
            deleted = await self._api.delete(kind, namespace, name, user=user, dry_run=dry_run)
            return Response(200, encode(deleted), dict(_JSON))
        body = _body_of(request)
        if request.method == "POST":
            answer = await self._api.create(
                kind, _placed(body, namespace, ""), user=user, manager=manager, dry_run=dry_run
            )
            return _written(201, answer, answer.warnings, request)
        if request.method == "PUT":
            answer = await self._api.update(
                kind, _placed(body, namespace, name), user=user, manager=manager, dry_run=dry_run
            )
            return _written(200, answer, answer.warnings, request)
        content_type = request.headers.get("content-type", "").split(";")[0]
        if content_type == APPLY_PATCH and not request.query.get("fieldManager"):
            raise bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        answer = await self._api.patch(
            kind,
            namespace,
            name,
            body,
            content_type,
            user=user,
            manager=manager,
            force=request.query.get("force") == "true",
            dry_run=dry_run,
        )
        return _written(200, answer, answer.warnings, request)


def _set(found: dict[Any, None], key: Any, on: bool) -> None:
    if on:
        found[key] = None
    else:
        found.pop(key, None)


def _kind(resource: str) -> str:
    """The kind of a plural, or of its own name."""
    return resource if resource in KINDS else BY_PLURAL[resource.partition(".")[0]].name


def _wants_metadata(request: Request) -> bool:
    return _METADATA in request.headers.get("accept", "")


def _body_of(request: Request) -> Any:
    try:
        return decode(request.body)
    except ValueError as exc:
        raise bad_request(f"the body of the request is no JSON: {exc}") from exc


def _placed(body: Document, namespace: str, name: str) -> Document:
    """The object with what the path says of it."""
    metadata = dict(body.get("metadata") or {})
    if namespace:
        metadata["namespace"] = namespace
    if name:
        metadata["name"] = name
    return {**body, "metadata": metadata}


def _written(status: int, document: Document, warnings: list[str], request: Request) -> Response:
    headers = dict(_JSON)
    if warnings:
        headers["Warning"] = ", ".join(f'299 - "{each}"' for each in warnings)
    return Response(status, Stored(dict(document), 0).encoded(metadata_only=_wants_metadata(request)), headers)


def _refused(exc: ApiError) -> Response:
    headers = dict(_JSON)
    if exc.retry_after_seconds is not None:
        headers["Retry-After"] = str(exc.retry_after_seconds)
    return Response(exc.code, encode(exc.status), headers)
