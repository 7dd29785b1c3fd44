"""The DaemonSet controller: it judges nodes by the template, and each pod names its node.

Sources: pkg/controller/daemon/daemon_controller.go, update.go and util/daemonset_util.go. Limits: maxSurge and
minReadySeconds are not played, and of a deletion there is no in-between.
"""

from collections.abc import Iterator

from tests.unit.placement.kube_scheduler import allows, tolerates
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import Key
from tests.worlds.controllers import (
    Controller,
    amount_of,
    create_in_batches,
    hash_of,
    is_ready,
    phase_of,
    pod_from,
)
from tests.worlds.stateful_sets import REVISION_LABEL

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_FIRST_BACKOFF_SECONDS, _LAST_BACKOFF_SECONDS = 1.0, 900.0  # of a node whose pods fail (failedPodsBackoff)
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


class DaemonSets(Controller):
    """Keeps one pod on each node that the template allows."""

    kind = "DaemonSet"
    account = "daemon-set-controller"

    def __init__(self, api: ApiServer) -> None:
        super().__init__(api)
        self._backoff: dict[tuple[Key, str], tuple[float, float]] = {}  # how long, and until when
        api.subscribe("Node", lambda *_: self.enqueue_all())

    async def sync(self, key: Key) -> None:
        """Creates and deletes pods, then replaces some that have another template."""
        found = self.find(key)
        if found is None:
            return
        revision = hash_of(found["spec"]["template"])
        needing: list[str] = []
        surplus: list[Document] = []
        by_node = self._by_node(found)
        for stored in self.api.storage.all("Node"):
            name = stored.document["metadata"]["name"]
            pods = by_node.pop(name, [])
            runs, stays = _judge(found, stored.document)
            failed = [pod for pod in pods if phase_of(pod) == "Failed"]
            left = [pod for pod in pods if phase_of(pod) != "Failed"]
            surplus += failed if stays and self._may_replace(key, name, failed) else []
            surplus += left[1:] if stays else pods
            if runs and not pods:
                needing.append(name)
        surplus += [pod for pods in by_node.values() for pod in pods]  # of nodes that are gone
        for pod in surplus:
            await self.delete_pod(pod)
        await create_in_batches(
            len(needing), lambda index: self.create_pod(found, _pod(found, needing[index], revision))
        )
        await self._roll(found, revision)
        self._observe(key, revision)

    def _by_node(self, owner: Document) -> dict[str, list[Document]]:
        found: dict[str, list[Document]] = {}
        for pod in self.pods_of(owner):
            found.setdefault(_node_of(pod), []).append(pod)
        return found

    def _may_replace(self, key: Key, node: str, failed: list[Document]) -> bool:
        """Whether failed pods of the node may go now; if not, it is tried again then."""
        if not failed:
            return False
        now = self.api.time()
        seconds, until = self._backoff.get((key, node), (0.0, 0.0))
        if now < until:
            self.enqueue_after(key, until - now)
            return False
        seconds = min(max(2 * seconds, _FIRST_BACKOFF_SECONDS), _LAST_BACKOFF_SECONDS)
        self._backoff[key, node] = (seconds, now + seconds)
        return True

    async def _roll(self, owner: Document, revision: str) -> None:
        """Deletes outdated pods: those that are not ready, and others as long as few enough nodes lack a ready one."""
        strategy = owner["spec"]["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        by_node = self._by_node(owner)
        most = amount_of(strategy["rollingUpdate"]["maxUnavailable"], len(by_node), round_up=True)
        unavailable = 0
        idle: list[Document] = []
        serving: list[Document] = []
        for pod in (pods[0] for pods in by_node.values()):
            is_outdated = pod["metadata"]["labels"].get(REVISION_LABEL) != revision
            if is_outdated:
                (serving if is_ready(pod) else idle).append(pod)
            unavailable += not is_ready(pod)
        for pod in (*idle, *serving[: max(0, most - unavailable)]):
            await self.delete_pod(pod)

    def _observe(self, key: Key, revision: str) -> None:
        found = self.find(key)
        if found is None:
            return
        pods = list(self.pods_of(found))
        wanted = sum(_judge(found, stored.document)[0] for stored in self.api.storage.all("Node"))
        counts = {
            "desiredNumberScheduled": wanted,
            "currentNumberScheduled": len(pods),
            "numberReady": sum(map(is_ready, pods)),
            "numberMisscheduled": 0,
            "updatedNumberScheduled": sum(pod["metadata"]["labels"].get(REVISION_LABEL) == revision for pod in pods),
            "observedGeneration": found["metadata"]["generation"],
        }
        self.set_status(found, counts)


def _judge(owner: Document, node: Document) -> tuple[bool, bool]:
    """Whether a pod is to run on the node, and whether one that is there may stay (NodeShouldRunDaemonPod)."""
    spec = owner["spec"]["template"]["spec"]
    if spec.get("nodeName") not in (None, "", node["metadata"]["name"]) or not allows(spec, node):
        return False, False
    tolerations = [*(spec.get("tolerations") or ()), *_own_tolerations()]
    untolerated = [
        taint["effect"]
        for taint in node["spec"].get("taints") or ()
        if not any(tolerates(each, taint) for each in tolerations)
    ]
    return not {"NoSchedule", "NoExecute"} & {*untolerated}, "NoExecute" not in untolerated


def _own_tolerations() -> Iterator[Document]:
    """Those that every pod of a DaemonSet gets (AddOrUpdateDaemonPodTolerations)."""
    return ({"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED)


def _pod(owner: Document, node: str, revision: str) -> Document:
    """A pod whose affinity names its node, in place of the template's (ReplaceDaemonSetPodNodeNameNodeAffinity)."""
    pod = pod_from(owner, "DaemonSet")
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    node_affinity = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: {"nodeSelectorTerms": [named]}}
    spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}
    theirs = spec.get("tolerations") or []
    spec["tolerations"] = [*theirs, *(each for each in _own_tolerations() if each not in theirs)]
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], REVISION_LABEL: revision}
    return pod


def _node_of(pod: Document) -> str:
    """The node that the pod is on, or is for."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    terms = pod["spec"]["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    return str(next(field["values"][0] for term in terms for field in term.get("matchFields") or ()))
