"""The ReplicaSet controller and the Deployment controller.

Sources: pkg/controller/replicaset/replica_set.go, pkg/controller/deployment (sync.go, rolling.go, recreate.go) and its
util. Limits: minReadySeconds, pausing, rollback, the progress deadline and clean-up of history are not played.
"""

from collections.abc import Sequence

from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import MERGE_PATCH, ApiServer
from tests.worlds.api_storage import Key, copied, key_of
from tests.worlds.controllers import (
    Controller,
    amount_of,
    create_in_batches,
    hash_of,
    is_active,
    is_ready,
    owned,
    owner_of,
    phase_of,
    pod_from,
    reference_to,
)

_HASH_LABEL = "pod-template-hash"
_PHASES = ("Pending", "Unknown", "Running")


class ReplicaSets(Controller):
    """Keeps as many pods as each ReplicaSet asks for."""

    kind = "ReplicaSet"
    account = "replicaset-controller"

    async def sync(self, key: Key) -> None:
        """Creates what is missing, or deletes what is too much."""
        found = self.find(key)
        if found is None:
            return
        pods = [pod for pod in self.pods_of(found) if is_active(pod)]
        missing = found["spec"]["replicas"] - len(pods)
        try:
            if missing > 0:
                await create_in_batches(missing, lambda _: self.create_pod(found, pod_from(found, self.kind)))
            youngest_first = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
            for pod in sorted(youngest_first, key=_rank)[: max(0, -missing)]:
                await self.delete_pod(pod)
        finally:
            self._observe(key)

    def _observe(self, key: Key) -> None:
        found = self.find(key)
        if found is None:
            return
        pods = [pod for pod in self.pods_of(found) if is_active(pod)]
        ready = sum(map(is_ready, pods))
        counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        self.set_status(found, counts | {"observedGeneration": found["metadata"]["generation"]})


def _rank(pod: Document) -> tuple[object, ...]:
    """Whom to delete first (ActivePodsWithRanks): what is not placed, not running, not ready."""
    placed, phase = bool(pod["spec"].get("nodeName")), _PHASES.index(phase_of(pod))
    return placed, phase, is_ready(pod)


class Deployments(Controller):
    """Has one ReplicaSet for each template, and moves pods from the old ones to the new one."""

    kind = "Deployment"
    account = "deployment-controller"

    def __init__(self, api: ApiServer) -> None:
        super().__init__(api)
        api.subscribe("ReplicaSet", self._on_replica_set)

    def _on_replica_set(self, _change: str, before: Document | None, after: Document | None) -> None:
        found = after or before or {}
        owner = owner_of(found)
        if owner and owner["kind"] == self.kind:
            self.enqueue((found["metadata"]["namespace"], owner["name"]))

    async def sync(self, key: Key) -> None:
        """Takes the next step of a rollout."""
        deployment = self.find(key)
        if deployment is None:
            return
        sets = list(owned(self.api, "ReplicaSet", deployment))
        new = next((each for each in sets if _template_of(each) == deployment["spec"]["template"]), None)
        old = [each for each in sets if each is not new]
        if deployment["spec"]["strategy"]["type"] == "Recreate":
            await self._recreate(deployment, new, old)
        else:
            await self._roll(deployment, new, old)
        self._observe(key)

    async def _recreate(self, deployment: Document, new: Document | None, old: Sequence[Document]) -> None:
        for each in old:
            await self._scale(each, 0)
        if any(any(self.pods_of(each)) for each in old):
            return
        wanted = deployment["spec"]["replicas"]
        if new is None:
            await self._create_set(deployment, wanted)
        else:
            await self._scale(new, wanted)

    async def _roll(self, deployment: Document, new: Document | None, old: Sequence[Document]) -> None:
        wanted = deployment["spec"]["replicas"]
        rolling = deployment["spec"]["strategy"]["rollingUpdate"]
        surge = amount_of(rolling["maxSurge"], wanted, round_up=True)
        unavailable = amount_of(rolling["maxUnavailable"], wanted, round_up=False)
        if surge == 0 and unavailable == 0:  # ResolveFenceposts
            unavailable = 1
        total = sum(each["spec"]["replicas"] for each in (*old, *([new] if new else ())))
        current = new["spec"]["replicas"] if new else 0
        replicas = current + max(0, min(wanted + surge - total, wanted - current))
        if new is None:
            await self._create_set(deployment, replicas)
            return
        if current > wanted or replicas > current:
            await self._scale(new, min(replicas, wanted))
            return
        await self._scale_down(new, old, total, wanted - unavailable)

    async def _scale_down(self, new: Document, old: Sequence[Document], total: int, least: int) -> None:
        """Scales old sets down: first what is not available, then as long as enough is (reconcileOldReplicaSets)."""
        room = total - least - (new["spec"]["replicas"] - _available(new))
        spare = _available(new) + sum(map(_available, old)) - least
        if room <= 0:
            return
        for each in old:
            replicas = each["spec"]["replicas"]
            unhealthy = max(0, min(replicas - _available(each), room))
            healthy = max(0, min(replicas - unhealthy, spare))
            room, spare = room - unhealthy, spare - healthy
            await self._scale(each, replicas - unhealthy - healthy)

    async def _scale(self, found: Document, replicas: int) -> None:
        if found["spec"]["replicas"] != replicas:
            namespace, name = key_of(found)
            patch = {"spec": {"replicas": replicas}}
            await self.api.patch("ReplicaSet", namespace, name, patch, MERGE_PATCH, user=self.user)

    async def _create_set(self, deployment: Document, replicas: int) -> None:
        metadata, template = deployment["metadata"], copied(deployment["spec"]["template"])
        collisions = (deployment.get("status") or {}).get("collisionCount", 0)
        hashed = {_HASH_LABEL: hash_of(template, collisions)}
        template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **hashed}
        selector = deployment["spec"].get("selector") or {}
        made = {
            "metadata": {
                "name": f"{metadata['name']}-{hashed[_HASH_LABEL]}",
                "namespace": metadata["namespace"],
                "labels": template["metadata"]["labels"],
                "ownerReferences": [reference_to(deployment, self.kind)],
            },
            "spec": {
                "replicas": replicas,
                "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **hashed}},
                "template": template,
            },
        }
        try:
            await self.api.create("ReplicaSet", made, user=self.user)
        except ApiError as exc:
            if exc.reason == "AlreadyExists":  # of another template: somebody has changed it
                status = {**(deployment.get("status") or {}), "collisionCount": collisions + 1}
                self.set_status(deployment, status)
            raise

    def _observe(self, key: Key) -> None:
        deployment = self.find(key)
        if deployment is None:
            return
        sets = list(owned(self.api, "ReplicaSet", deployment))
        counts = {
            name: sum((each.get("status") or {}).get(name, 0) for each in sets)
            for name in ("replicas", "readyReplicas", "availableReplicas")
        }
        new = [each for each in sets if _template_of(each) == deployment["spec"]["template"]]
        counts["updatedReplicas"] = sum((each.get("status") or {}).get("replicas", 0) for each in new)
        counts["observedGeneration"] = deployment["metadata"]["generation"]
        self.set_status(deployment, {**(deployment.get("status") or {}), **counts})


def _available(found: Document) -> int:
    return int((found.get("status") or {}).get("availableReplicas", 0))


def _template_of(replica_set: Document) -> Document:
    """Its template without the hash (EqualIgnoreHash)."""
    template: Document = replica_set["spec"]["template"]
    labels = {key: value for key, value in (template["metadata"].get("labels") or {}).items() if key != _HASH_LABEL}
    metadata = {key: value for key, value in template["metadata"].items() if key != "labels"}
    return {**template, "metadata": {**metadata, "labels": labels} if labels else metadata}
