"""The StatefulSet controller. Source: pkg/controller/statefulset/stateful_set_control.go.

Limits: volumes and `partition` are not played; a revision is the template's hash.
"""

from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import Key
from tests.worlds.controllers import Controller, hash_of, is_active, is_ready, pod_from

REVISION_LABEL = "controller-revision-hash"


class StatefulSets(Controller):
    """Keeps pods with numbers, one after the other."""

    kind = "StatefulSet"
    account = "statefulset-controller"

    async def sync(self, key: Key) -> None:
        """Takes the next step: the first pod that is missing or has ended, else one that is too much or outdated."""
        found = self.find(key)
        if found is None:
            return
        pods = {pod["metadata"]["name"]: pod for pod in self.pods_of(found)}
        wanted = [f"{key[1]}-{number}" for number in range(found["spec"]["replicas"])]
        is_ordered = found["spec"].get("podManagementPolicy") != "Parallel"
        revision = hash_of(found["spec"]["template"])
        if await self._replace(found, wanted, pods, revision, is_ordered=is_ordered):
            await self._remove(found, wanted, pods, revision)
        self._observe(key)

    async def _replace(
        self, owner: Document, wanted: list[str], pods: dict[str, Document], revision: str, *, is_ordered: bool
    ) -> bool:
        """Whether all pods are there, and ready where they come in order."""
        for number, name in enumerate(wanted):
            pod = pods.get(name)
            if pod and not is_active(pod):
                await self.delete_pod(pod)
                pod = None
            if pod is None:
                await self.create_pod(owner, _pod(owner, number, revision))
            if is_ordered and not (pod and is_ready(pod)):
                # An outdated one that will never be ready stays (kubernetes/kubernetes#67250).
                return False
        return True

    async def _remove(self, owner: Document, wanted: list[str], pods: dict[str, Document], revision: str) -> None:
        """Deletes the last pod that is too much, else the last outdated one, if those after it are ready."""
        surplus = [name for name in pods if name not in wanted]
        if surplus:
            await self.delete_pod(pods[max(surplus, key=lambda name: int(name.rpartition("-")[2]))])
            return
        if owner["spec"]["updateStrategy"].get("type") == "OnDelete":
            return
        for name in reversed(wanted):
            pod = pods.get(name)
            if pod and pod["metadata"]["labels"].get(REVISION_LABEL) != revision:
                await self.delete_pod(pod)
                return
            if pod is None or not is_ready(pod):
                return

    def _observe(self, key: Key) -> None:
        found = self.find(key)
        if found is None:
            return
        pods = list(self.pods_of(found))
        ready = sum(map(is_ready, pods))
        counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        self.set_status(found, counts | {"observedGeneration": found["metadata"]["generation"]})


def _pod(owner: Document, number: int, revision: str) -> Document:
    pod = pod_from(owner, "StatefulSet")
    metadata = pod["metadata"]
    metadata["name"] = f"{owner['metadata']['name']}-{number}"
    del metadata["generateName"]
    numbered = {"statefulset.kubernetes.io/pod-name": metadata["name"], "apps.kubernetes.io/pod-index": str(number)}
    metadata["labels"] = {**metadata["labels"], **numbered, REVISION_LABEL: revision}
    return pod
