"""kube-apiserver: what becomes of a request to create, change, apply or delete an object.

Sources: k8s.io/apiserver/pkg/endpoints/handlers (create, update, patch), pkg/registry/generic/registry/store.go and
pkg/registry/core/pod/strategy.go. In order: defaults, mutating admission, validation, validating admission, storage; a
change without a resourceVersion is made again on the newer object where another one came between.
`api_requests` has the same over HTTP, for our service.
Limits: a deleted object is gone at once, without finalizers or a grace period; a status is written without admission;
there is one API server, and nobody is refused for lack of rights but who asks over HTTP.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from testbed.json_patches import PatchFailed, apply_json_patch, apply_merge_patch
from testbed.memory_http import Client
from testbed.memory_network import Network
from tests.worlds.admission import Admission, completed, new_uid
from tests.worlds.admission_rules import Request
from tests.worlds.api_errors import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    unprocessable_patch,
)
from tests.worlds.api_kinds import KINDS, Document, Kind
from tests.worlds.api_storage import Key, Storage, Stored, Subscriber, copied, decode
from tests.worlds.defaulting import normalize
from tests.worlds.field_managers import FieldManagers
from tests.worlds.strategic_merge import apply_strategic_merge, last_applied, three_way_patch, with_last_applied
from tests.worlds.trace import Trace
from tests.worlds.webhook_calls import Post
from tests.worlds.workload_validation import problems_of

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"
HOST, PORT = "10.0.0.1", 6443
WEBHOOK_PORT = 8443

_TRIES = 6  # a request, and maxRetryWhenPatchConflicts (5) of handlers/patch.go
_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # k8s.io/apimachinery/pkg/util/rand
_SYSTEM_FIELDS = ("uid", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp")
_WITH_OWN_STATUS = ("Node",)  # whose strategies keep the status that a creation sends


class Answer(dict[str, Any]):
    """An object as the API server answers with it, and its warnings."""

    def __init__(self, document: Document, warnings: list[str]) -> None:
        super().__init__(document)
        self.warnings = warnings


class ApiServer:
    """The API server of a world. Objects are plain dicts; what is returned is the caller's own."""

    def __init__(self, network: Network, trace: Trace, chance: random.Random) -> None:
        """Listens at no address; `ApiRequests` does."""
        self.storage = Storage()
        self.managers = FieldManagers()
        self.admission = Admission(self.storage, self._post_to, trace, chance)
        self._client = Client(network, HOST)
        self._network = network
        self._trace = trace
        self.chance = chance

    def _post_to(self, host: str) -> Post:
        async def post(path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            url = f"http://{host}:{WEBHOOK_PORT}{path}"
            answer = await self._client.request("POST", url, body, headers, timeout_seconds=seconds)
            return answer.status, answer.body

        return post

    def now(self) -> str:
        """The time as objects have it."""
        return datetime.fromtimestamp(self._network.wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def time(self) -> float:
        """Seconds since the world began."""
        return self._network.loop.time()

    # Reads

    def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """A copy of the object."""
        stored = self.storage.find(kind, (namespace, name))
        return decode(stored.encoded()) if stored else None

    def list(self, kind: str, namespace: str | None = None) -> list[Document]:
        """Copies of the objects, in the order of their names."""
        return [decode(stored.encoded()) for stored in self.storage.all(kind, namespace or "")]

    def subscribe(self, kind: str, callback: Subscriber) -> None:
        """Has `callback` called at each change with its type, the object before and after, at once and in order."""
        self.storage.subscribe(kind, callback)

    # Changes

    async def create(self, kind: str, obj: Document, *, user: str, manager: str = "", dry_run: bool = False) -> Answer:
        """The object as it is stored. Raises ApiError."""
        document, sent = self._accepted(KINDS[kind], obj)
        request = await self._admit_new(KINDS[kind], document, user, dry_run)
        return self._store_new(request, sent, lambda uid: self.managers.created(uid, manager, sent))

    def _accepted(self, kind: Kind, obj: Document) -> tuple[Document, Document]:
        """The object of a creation with its defaults, twice: admission changes the first."""
        document = completed(kind.name, copied(obj))
        metadata = document.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for field in _SYSTEM_FIELDS:
            metadata.pop(field, None)
        if kind.is_namespaced:
            metadata.setdefault("namespace", "default")
        if not metadata.get("name") and not metadata.get("generateName"):
            raise invalid(kind, "", ["metadata.name: Required value: name or generateName is required"])
        if kind.name == "Namespace":
            labels = metadata.setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = metadata["name"]
        if kind.name not in _WITH_OWN_STATUS:
            document.pop("status", None)
        return document, copied(document)

    async def _admit_new(self, kind: Kind, document: Document, user: str, dry_run: bool) -> Request:
        request = self._request("CREATE", kind, document, None, user, dry_run)
        if kind.is_namespaced and request.namespace_object is None:
            raise not_found(KINDS["Namespace"], request.namespace)
        await self._mutate(request)
        return request

    def _request(
        self, operation: str, kind: Kind, document: Document, old: Document | None, user: str, dry_run: bool
    ) -> Request:
        metadata = document["metadata"]
        namespace = metadata.get("namespace", "")
        stored = self.storage.find("Namespace", ("", namespace))
        found = stored.document if stored else None
        name = metadata.get("name", "")
        return Request(operation, kind, namespace, name, user, document, old, dry_run=dry_run, namespace_object=found)

    async def _mutate(self, request: Request) -> None:
        try:
            await self.admission.mutate(request)
        except ApiError as exc:
            self._report_refused(request, exc)
            raise

    def _check(self, request: Request) -> None:
        """Raises ApiError for an object that is invalid, or that a policy denies."""
        try:
            if problems := problems_of(request.kind.name, request.document, request.old):
                raise invalid(request.kind, request.name, problems)
            self.admission.validate(request)
        except ApiError as exc:
            self._report_refused(request, exc)
            raise

    def _report_refused(self, request: Request, exc: ApiError) -> None:
        exc.warnings = request.warnings
        self._trace("api", "refused", kind=request.kind.name, name=f"{request.namespace}/{request.name}", why=str(exc))

    def _store_new(self, request: Request, sent: Document, manage: Callable[[str], None]) -> Answer:
        kind, document = request.kind, request.document
        metadata = document["metadata"]
        if not metadata.get("name"):
            metadata["name"] = self._generated_name(kind, metadata)
        metadata["uid"] = new_uid(self.chance)
        metadata["creationTimestamp"] = self.now()
        if kind.has_generation:
            metadata["generation"] = 1
        if kind.name == "Pod":
            document["status"] = _first_status(document)
        elif kind.name == "Namespace":
            document["status"] = {"phase": "Active"}
        request.name = metadata["name"]
        self._check(request)
        key = (request.namespace, request.name)
        if self.storage.find(kind.name, key):
            raise already_exists(kind, request.name)
        if not request.dry_run:
            self.storage.put(kind.name, document)
            manage(metadata["uid"])
            self._trace("api", "created", kind=kind.name, name="/".join(key), by=request.user)
        return Answer(copied(document), request.warnings)

    def _generated_name(self, kind: Kind, metadata: Document) -> str:
        while True:
            suffix = "".join(self.chance.choices(_NAME_CHARACTERS, k=5))
            name = f"{metadata['generateName'][:58]}{suffix}"
            if not self.storage.find(kind.name, (metadata.get("namespace", ""), name)):
                return name

    async def update(self, kind: str, obj: Document, *, user: str, manager: str = "", dry_run: bool = False) -> Answer:
        """Replaces the object; only one of the resourceVersion that `obj` has, if it has one. Raises ApiError."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        is_conditional = bool(obj["metadata"].get("resourceVersion"))

        def change(current: Document) -> Document:
            document = copied(obj)
            if not is_conditional:
                document["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
            return document

        return await self._change(
            KINDS[kind], key, change, user=user, manager=manager, is_conditional=is_conditional, dry_run=dry_run
        )

    async def patch(
        self,
        kind: str,
        namespace: str,
        name: str,
        body: Any,
        content_type: str,
        *,
        user: str,
        manager: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> Answer:
        """Patches the object; `body` is the patch, decoded. Raises ApiError."""
        if content_type == APPLY_PATCH:
            metadata = {**body.get("metadata", {}), "name": name, **({"namespace": namespace} if namespace else {})}
            applied = {**body, "metadata": metadata}
            return await self.apply(kind, applied, user=user, manager=manager, force=force, dry_run=dry_run)
        is_conditional = isinstance(body, dict) and bool((body.get("metadata") or {}).get("resourceVersion"))
        return await self._change(
            KINDS[kind],
            (namespace, name),
            lambda current: _patched(current, body, content_type),
            user=user,
            manager=manager,
            is_conditional=is_conditional,
            dry_run=dry_run,
        )

    async def apply(
        self, kind: str, manifest: Document, *, user: str, manager: str, force: bool = False, dry_run: bool = False
    ) -> Answer:
        """Server-side apply by a field manager. Raises ApiError, 409 for what another manager has set otherwise."""
        applied = completed_keys(kind, manifest)
        key = (applied["metadata"].get("namespace", ""), applied["metadata"]["name"])
        current = self.storage.find(kind, key)
        if current is None:
            document, sent = self._accepted(KINDS[kind], applied)
            request = await self._admit_new(KINDS[kind], document, user, dry_run)
            return self._store_new(request, sent, lambda uid: self.managers.applied(uid, manager, None, applied))
        uid = current.document["metadata"]["uid"]
        if manager == "kubectl":
            self.managers.take_over(uid)

        def change(live: Document) -> Document:
            if not force:
                self.managers.check_conflicts(uid, manager, live, applied)
            return self.managers.merged(uid, manager, live, applied)

        return await self._change(
            KINDS[kind],
            key,
            change,
            user=user,
            manager=manager,
            dry_run=dry_run,
            manage=lambda live, _: self.managers.applied(uid, manager, live, applied),
        )

    async def client_apply(self, kind: str, manifest: Document, *, user: str) -> Answer:
        """`kubectl apply`: creates the object, or sends what differs from it, or nothing. Raises ApiError.

        Source: k8s.io/kubectl/pkg/cmd/apply, apply.go and patcher.go.
        """
        modified = with_last_applied(completed_keys(kind, manifest))
        namespace, name = modified["metadata"].get("namespace", ""), modified["metadata"]["name"]
        current = self.get(kind, namespace, name)
        if current is None:
            return await self.create(kind, modified, user=user, manager=CLIENT_SIDE_APPLY)
        patch = three_way_patch(last_applied(current), modified, current)
        if not patch:
            return Answer(current, [])
        return await self.patch(
            kind, namespace, name, patch, STRATEGIC_MERGE_PATCH, user=user, manager=CLIENT_SIDE_APPLY
        )

    async def _change(
        self,
        kind: Kind,
        key: Key,
        change: Callable[[Document], Document],
        *,
        user: str,
        manager: str,
        dry_run: bool,
        is_conditional: bool = False,
        manage: Callable[[Document, Document], None] | None = None,
    ) -> Answer:
        for _ in range(_TRIES):
            stored = self.storage.find(kind.name, key)
            if stored is None:
                raise not_found(kind, key[1])
            request, sent = self._changed(kind, stored, change(copied(stored.document)), user, dry_run)
            await self._mutate(request)
            _count_generation(request)
            self._check(request)
            if self.storage.find(kind.name, key) is not stored:
                if is_conditional:
                    break
                continue
            if not dry_run:
                uid = stored.document["metadata"]["uid"]
                if manage:
                    manage(stored.document, sent)
                else:
                    self.managers.updated(uid, manager, stored.document, sent)
            return self._store_changed(request)
        raise conflict(kind, key[1])

    def _changed(
        self, kind: Kind, stored: Stored, document: Document, user: str, dry_run: bool
    ) -> tuple[Request, Document]:
        """The request with what the fields of the system are whatever was sent, and what was sent with defaults."""
        old, name = stored.document, stored.document["metadata"]["name"]
        metadata = document.get("metadata") or {}
        if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise invalid(kind, name, [f'metadata.uid: Invalid value: "{metadata["uid"]}": field is immutable'])
        if metadata.get("resourceVersion", "") not in ("", old["metadata"]["resourceVersion"]):
            raise conflict(kind, name)
        document["metadata"] = metadata
        for field in ("name", "namespace", "resourceVersion", *_SYSTEM_FIELDS):
            metadata.pop(field, None)
            if field in old["metadata"]:
                metadata[field] = old["metadata"][field]
        if kind.name == "Namespace":
            metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": name}
        document.pop("status", None)
        if "status" in old:
            document["status"] = old["status"]
        document = completed(kind.name, document)
        return self._request("UPDATE", kind, copied(document), old, user, dry_run), document

    def _store_changed(self, request: Request) -> Answer:
        kind, document, old = request.kind, request.document, request.old
        if document == old:  # the API server writes nothing then
            return Answer(copied(document), request.warnings)
        if not request.dry_run:
            self.storage.put(kind.name, document)
            name = f"{request.namespace}/{request.name}".lstrip("/")
            self._trace("api", "changed", kind=kind.name, name=name, by=request.user)
        return Answer(copied(document), request.warnings)

    async def delete(self, kind: str, namespace: str, name: str, *, user: str = "", dry_run: bool = False) -> Document:
        """Deletes the object; returns what it was. Raises ApiError."""
        stored = self.storage.find(kind, (namespace, name))
        if stored is None:
            raise not_found(KINDS[kind], name)
        request = self._request("DELETE", KINDS[kind], stored.document, stored.document, user, dry_run)
        self.admission.validate(request)
        if not dry_run:
            self.storage.remove(kind, (namespace, name))
            self.managers.forget(stored.document["metadata"]["uid"])
            self._trace("api", "deleted", kind=kind, name=f"{namespace}/{name}".lstrip("/"), by=user)
        return copied(stored.document)

    def set_status(self, kind: str, namespace: str, name: str, status: Document) -> None:
        """Replaces the status. Raises ApiError (404)."""
        stored = self.storage.find(kind, (namespace, name))
        if stored is None:
            raise not_found(KINDS[kind], name)
        if stored.document.get("status") != status:
            changed = {**stored.document, "metadata": dict(stored.document["metadata"]), "status": copied(status)}
            self.storage.put(kind, changed)

    async def bind(self, namespace: str, name: str, node: str) -> None:
        """Binds a pod to a node, as kube-scheduler does. Raises ApiError.

        Source: BindingREST.setPodNodeAndMetadata of pkg/registry/core/pod/storage.
        """
        kind = KINDS["Pod"]
        stored = self.storage.find("Pod", (namespace, name))
        if stored is None:
            raise not_found(kind, name)
        pod = copied(stored.document)
        if pod["spec"].get("nodeName"):
            raise conflict(kind, name, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        if pod["spec"].get("schedulingGates"):
            raise conflict(kind, name, f"pod {name} has non-empty .spec.schedulingGates")
        pod["spec"]["nodeName"] = node
        conditions = [each for each in pod["status"].get("conditions") or () if each["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now()}
        pod["status"]["conditions"] = [*conditions, scheduled]
        self.storage.put("Pod", pod)
        self._trace("api", "bound", name=f"{namespace}/{name}", node=node)


def completed_keys(kind: str, manifest: Document) -> Document:
    """A copy of a manifest with its apiVersion, kind and namespace, as kubectl sends it; nulls stay out."""
    found: Document = normalize(copied(manifest))
    metadata = found.setdefault("metadata", {})
    if KINDS[kind].is_namespaced:
        metadata.setdefault("namespace", "default")
    return {**found, "apiVersion": KINDS[kind].api_version, "kind": kind}


def _patched(current: Document, body: Any, content_type: str) -> Document:
    match content_type:
        case "application/json-patch+json":
            try:
                return apply_json_patch(current, body)
            except PatchFailed as exc:
                raise unprocessable_patch() from exc
        case "application/merge-patch+json":
            return apply_merge_patch(current, body)
        case "application/strategic-merge-patch+json":
            return apply_strategic_merge(current, body)
    raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}")


def _count_generation(request: Request) -> None:
    """Counts up the generation where the spec, or what stands in its place, has changed."""
    if not (request.kind.has_generation and request.old):
        return
    unlike = ("metadata", "status")
    before, after = (
        {key: value for key, value in each.items() if key not in unlike} for each in (request.old, request.document)
    )
    generation = request.old["metadata"].get("generation", 1)
    request.document["metadata"]["generation"] = generation + (before != after)


def _first_status(pod: Document) -> Document:
    """Source: podStrategy.PrepareForCreate."""
    status: Document = {"phase": "Pending", "qosClass": "BestEffort"}
    if pod["spec"].get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    return status
