"""What controllers of workloads have in common: a queue with back-off, pods from templates, creation in batches.

Sources: k8s.io/client-go/util/workqueue (default_rate_limiters.go) and pkg/controller/controller_utils.go. Limits: a
controller's informers are never behind, so that it needs no expectations; its queue has no overall rate.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import KINDS, Document
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import Key, encode, key_of

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.005, 1000.0  # DefaultControllerRateLimiter
_WORKERS = 5  # --concurrent-replicaset-syncs and its siblings
_HASH_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"


class Controller:
    """Brings objects of `kind` about, one sync of an object at a time; `run` runs it until cancelled."""

    kind: str
    account: str

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.user = f"system:serviceaccount:kube-system:{self.account}"
        self._waiting: deque[Key] = deque()
        self._dirty: dict[Key, None] = {}
        self._processing: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}
        self._has_work = asyncio.Event()
        api.subscribe(self.kind, lambda _, before, after: self.enqueue(key_of(after or before or {})))
        api.subscribe("Pod", self._on_pod)

    async def sync(self, key: Key) -> None:
        """Brings one object about. It is tried again after an ApiError, later and later."""
        raise NotImplementedError

    def enqueue(self, key: Key) -> None:
        """Has the object synced soon, once."""
        if key in self._dirty:
            return
        self._dirty[key] = None
        if key not in self._processing:
            self._waiting.append(key)
            self._has_work.set()

    def enqueue_after(self, key: Key, seconds: float) -> None:
        """Has the object synced later."""
        asyncio.get_running_loop().call_later(seconds, self.enqueue, key)

    def enqueue_all(self) -> None:
        """Has all objects of the kind synced."""
        for stored in self.api.storage.all(self.kind):
            self.enqueue(key_of(stored.document))

    def _on_pod(self, _change: str, before: Document | None, after: Document | None) -> None:
        pod = after or before or {}
        owner = owner_of(pod)
        if owner and owner["kind"] == self.kind:
            self.enqueue((pod["metadata"]["namespace"], owner["name"]))

    async def run(self) -> None:
        """Syncs what is enqueued until cancelled."""
        self.enqueue_all()
        async with asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._has_work.clear()
                await self._has_work.wait()
            key = self._waiting.popleft()
            del self._dirty[key]
            self._processing[key] = None
            try:
                await self.sync(key)
                self._failures.pop(key, None)
            except ApiError:
                failures = self._failures.get(key, 0)
                self._failures[key] = failures + 1
                self.enqueue_after(key, min(_FIRST_RETRY_SECONDS * 2 ** min(failures, 20), _LAST_RETRY_SECONDS))
            finally:
                del self._processing[key]
                if key in self._dirty:
                    self._waiting.append(key)
                    self._has_work.set()

    def find(self, key: Key) -> Document | None:
        """The object, not to be changed."""
        stored = self.api.storage.find(self.kind, key)
        return stored.document if stored else None

    def pods_of(self, owner: Document) -> Iterator[Document]:
        """The pods that the object controls, in the order of their names; not to be changed."""
        return owned(self.api, "Pod", owner)

    async def create_pod(self, owner: Document, pod: Document) -> None:
        """Creates a pod of the owner. Raises ApiError."""
        await self.api.create("Pod", pod, user=self.user)

    async def delete_pod(self, pod: Document) -> None:
        """Deletes the pod, if it is there."""
        namespace, name = key_of(pod)
        if self.api.storage.find("Pod", (namespace, name)):
            await self.api.delete("Pod", namespace, name, user=self.user)

    def set_status(self, owner: Document, status: Document) -> None:
        """Writes what is observed."""
        namespace, name = key_of(owner)
        if self.api.storage.find(self.kind, (namespace, name)):
            self.api.set_status(self.kind, namespace, name, status)


def owner_of(document: Document) -> Document | None:
    """The reference to the controller of an object."""
    return next((each for each in document["metadata"].get("ownerReferences") or () if each.get("controller")), None)


def owned(api: ApiServer, kind: str, owner: Document) -> Iterator[Document]:
    """The objects of a kind that the owner controls, not to be changed."""
    uid = owner["metadata"]["uid"]
    for stored in api.storage.all(kind, owner["metadata"].get("namespace", "")):
        found = owner_of(stored.document)
        if found and found["uid"] == uid:
            yield stored.document


def reference_to(owner: Document, kind: str) -> Document:
    """As an object has it that the owner controls (metav1.NewControllerRef)."""
    metadata = owner["metadata"]
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from(owner: Document, kind: str) -> Document:
    """A pod by the owner's template, without a name (GetPodFromTemplate)."""
    template, metadata = owner["spec"]["template"], owner["metadata"]
    found = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": dict(found.get("labels") or {}),
            "annotations": dict(found.get("annotations") or {}),
            "ownerReferences": [reference_to(owner, kind)],
        },
        "spec": dict(template["spec"]),
    }


def is_active(pod: Document) -> bool:
    """Whether the pod has not ended."""
    return phase_of(pod) not in ("Succeeded", "Failed")


def phase_of(pod: Document) -> str:
    """The pod's phase."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_ready(pod: Document) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def hash_of(template: Document, *more: object) -> str:
    """What tells templates apart; it is not the hash that Kubernetes computes."""
    digest = hashlib.sha256(encode([template, *more])).digest()
    return "".join(_HASH_CHARACTERS[byte % len(_HASH_CHARACTERS)] for byte in digest[:10])


def amount_of(value: int | str, total: int, *, round_up: bool) -> int:
    """A number, or a percentage of the total."""
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total
    return -(-share // 100) if round_up else share // 100


async def create_in_batches(count: int, create: Callable[[int], Awaitable[None]]) -> None:
    """Creates 1, then 2, then 4 at once, and so on; after a failure no further batch. Raises the first ApiError.

    Source: slowStartBatch.
    """
    done, batch = 0, 1
    while done < count:
        size = min(batch, count - done)
        results = await asyncio.gather(*(create(done + index) for index in range(size)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        done, batch = done + size, batch * 2
