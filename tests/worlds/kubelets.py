"""Kubelets: nodes join with what they say of themselves, and what is bound to them is pulled and started, or fails.

It is written from kubernetes 1.36, pkg/kubelet (kubelet_node_status.go, images/image_manager.go, config/file.go,
lifecycle/predicate.go) and runs of it beside containerd 2.3.7. What can be pulled and what runs is `containerd`'s. A
pull that failed is tried again after 10 s, doubled up to 300 s; a program that ended is started again at once, then
after the same times. What was pulled with a pull secret is there for pods that have one of these logins alone
(KubeletEnsureSecretPulledImages).

Limits: no cgroups, sandboxes, volumes but images, nor eviction, not even by NoExecute taints. Programs that run do so
for ever, unless their pod's restartPolicy has an end: then they end well after some seconds. Leases, heartbeats and the
images in a node's status are not played.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from testbed.memory_network import Network
from testbed.objects import fake_node
from tests.worlds.api_errors import ApiError
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import key_of
from tests.worlds.containerd import Machine, Outcome, machine_of, with_handler
from tests.worlds.image_references import read_reference
from tests.worlds.node_images import NodeImages
from tests.worlds.node_rules import NodeInfo, filter_node, untolerated
from tests.worlds.plan import Node
from tests.worlds.pod_statuses import pod_status
from tests.worlds.pod_worker import PodWorker
from tests.worlds.pull_secrets import logins_for
from tests.worlds.registries import Registries
from tests.worlds.trace import Trace

Json = dict[str, Any]

HANDLERS: Mapping[str, tuple[str, ...]] = {"wasm": ("wasip1/wasm",), "rosetta": ("linux/amd64",)}
"""What nodes run for RuntimeClasses of these names, besides their own programs."""
_MIRROR = "kubernetes.io/config.mirror"
_STARTING_SECONDS = (0.05, 0.4)  # until the first container of a pod that was bound is pulled
_OVER = ("Succeeded", "Failed")
_REASONS = {"Insufficient cpu": "OutOfcpu", "Insufficient memory": "OutOfmemory", "Too many pods": "OutOfpods"}


class Ran(NamedTuple):
    """What became of a container, or of an image volume, on a node. It is noted when it is another than before."""

    uid: str
    namespace: str
    pod: str
    node: str
    container: str
    image: str
    digest: str
    outcome: Outcome
    at: float


class _Kubelet(NamedTuple):
    node: Node
    machine: Machine
    images: NodeImages


class Kubelets:
    """The kubelets of a world's nodes. They work while `run` runs."""

    def __init__(
        self,
        network: Network,
        api: ApiServer,
        registries: Registries,
        trace: Trace,
        chance: random.Random,
        *,
        handlers: Mapping[str, Sequence[str]] = HANDLERS,
    ) -> None:
        self.ran: list[Ran] = []
        self._network = network
        self._api = api
        self._registries = registries
        self._trace = trace
        self._chance = chance
        self._handlers = handlers
        self._kubelets: dict[str, _Kubelet] = {}
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._static: dict[tuple[str, str], Json] = {}
        self._last: dict[tuple[str, str], tuple[str, str, Outcome]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        api.subscribe("Pod", self._on_pod)

    async def run(self) -> None:
        """Runs what is bound to the nodes until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for pod in self._api.list("Pod"):
                    self._on_pod("ADDED", None, pod)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            self._workers.clear()

    async def add_node(self, node: Node) -> None:
        """A node joins. Raises ApiError, for one of a name that is there."""
        kubelet = _Kubelet(node, machine_of(node.platform, node.containerd), NodeImages(self._registries))
        before = self._kubelets.setdefault(node.name, kubelet)
        try:
            await self._api.create("Node", node_object(node), user=f"system:node:{node.name}")
        except ApiError:
            if before is kubelet:
                del self._kubelets[node.name]
            raise

    async def remove_node(self, name: str) -> None:
        """A node leaves, and what runs there ends. Its pods are the controllers' to delete."""
        del self._kubelets[name]
        for uid in [uid for uid, (worker, _) in self._workers.items() if worker.pod["spec"]["nodeName"] == name]:
            self._end(uid)
        await self._api.delete("Node", "", name)

    async def preload(self, node: str, image: str) -> None:
        """Puts an image on a node, for pods with any credentials. Raises node_images.Missing."""
        kubelet = self._kubelets[node]
        await kubelet.images.ensure(image, "IfNotPresent", lambda: (), kubelet.machine)

    async def add_static_pod(self, node: str, pod: Json) -> None:
        """A manifest appears in a node's folder: it runs there, and the API server is shown a mirror of it."""
        namespace, name = key_of(pod)
        mirror = {**pod, "metadata": {**pod["metadata"], "name": f"{name}-{node}"}}
        annotations = {
            **(pod["metadata"].get("annotations") or {}),
            _MIRROR: "hash",
            "kubernetes.io/config.source": "file",
        }
        mirror["metadata"]["annotations"] = annotations
        tolerations = [*(pod["spec"].get("tolerations") or ()), {"operator": "Exists", "effect": "NoExecute"}]
        mirror["spec"] = {**pod["spec"], "nodeName": node, "tolerations": tolerations}
        if found := self._api.get("Node", "", node):
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
            mirror["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        static = {**mirror, "metadata": {**mirror["metadata"], "uid": f"static-{namespace}-{name}-{node}"}}
        self._start(static)
        self._static[namespace, mirror["metadata"]["name"]] = mirror
        await self._mirror(mirror)

    async def _mirror(self, mirror: Json) -> None:
        try:
            await self._api.create("Pod", mirror, user=f"system:node:{mirror['spec']['nodeName']}")
        except ApiError as exc:  # the pod runs without
            self._trace("kubelet", "mirror refused", pod=key_of(mirror), error=str(exc))

    def _on_pod(self, change: str, old: Json | None, new: Json | None) -> None:
        pod = old if change == "DELETED" or new is None else new
        if self._tasks is None or pod is None or pod["spec"].get("nodeName") not in self._kubelets:
            return
        uid = pod["metadata"]["uid"]
        if _MIRROR in (pod["metadata"].get("annotations") or {}):
            if change == "DELETED" and (mirror := self._static.get(key_of(pod))):
                self._tasks.create_task(self._mirror(mirror))
        elif change == "DELETED":
            self._end(uid)
        elif uid in self._workers:
            self._workers[uid][0].update(pod)
        elif (pod.get("status") or {}).get("phase") not in _OVER:
            self._start(pod)

    def _start(self, pod: Json) -> None:
        assert self._tasks is not None
        uid, kubelet = pod["metadata"]["uid"], self._kubelets[pod["spec"]["nodeName"]]
        handled = self._handlers.get(pod["spec"].get("runtimeClassName") or "", ())

        def record(container: str, image: str, digest: str, outcome: Outcome) -> None:
            self._record(pod, container, image, digest, outcome)

        worker = PodWorker(
            pod,
            with_handler(kubelet.machine, handled),
            kubelet.images,
            self._logins,
            self._chance,
            write=lambda: self._write(worker),
            record=record,
            now=self._api.now,
        )
        self._workers[uid] = (worker, self._tasks.create_task(self._run_pod(worker)))

    async def _run_pod(self, worker: PodWorker) -> None:
        await asyncio.sleep(self._chance.uniform(*_STARTING_SECONDS))
        if reason := self._refusal(worker.pod):
            self._reject(worker.pod, *reason)
        else:
            await worker.run()

    def _end(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker:
            worker[1].cancel()

    def _refusal(self, pod: Json) -> tuple[str, str] | None:
        """Why the kubelet does not admit the pod: reason and message (predicateAdmitHandler)."""
        uid, name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        node = self._api.get("Node", "", name)
        if node is None:
            return None
        system = self._kubelets[name].node.os
        if (pod["spec"].get("os") or {}).get("name") not in (None, system):
            return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
        others = {
            other: worker.pod
            for other, (worker, _) in self._workers.items()
            if other != uid and worker.pod["spec"]["nodeName"] == name and not _is_over(worker)
        }
        bare = {**pod, "spec": {**pod["spec"], "tolerations": [{"operator": "Exists"}]}}
        if status := filter_node(bare, NodeInfo(node, others)):
            reason = status.reasons[0]
            return _REASONS.get(reason, status.plugin), f"Predicate {status.plugin} failed: {reason}"
        if _MIRROR not in (pod["metadata"].get("annotations") or {}) and untolerated(pod["spec"], node, ["NoExecute"]):
            text = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
            return "TaintToleration", text
        return None

    def _reject(self, pod: Json, reason: str, message: str) -> None:
        namespace, name = key_of(pod)
        self._trace("kubelet", "rejected", pod=(namespace, name), reason=reason)
        if found := self._api.get("Pod", namespace, name):
            text = f"Pod was rejected: {message}"
            status = {**(found.get("status") or {}), "phase": "Failed", "reason": reason, "message": text}
            self._api.set_status("Pod", namespace, name, status)

    def _write(self, worker: PodWorker) -> None:
        """Puts the states of a pod's containers into its status."""
        namespace, name = key_of(worker.pod)
        found = self._api.get("Pod", namespace, name)
        is_mirror = found is not None and _MIRROR in (found["metadata"].get("annotations") or {})
        if found is None or (found["metadata"]["uid"] != worker.pod["metadata"]["uid"] and not is_mirror):
            return
        status = pod_status(found["spec"], found.get("status") or {}, worker.states, self._api.now())
        self._api.set_status("Pod", namespace, name, status)

    def _record(self, pod: Json, container: str, image: str, digest: str, outcome: Outcome) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if self._last.get((uid, container)) == (image, digest, outcome):
            return
        self._last[uid, container] = (image, digest, outcome)
        namespace, name = key_of(pod)
        self.ran.append(Ran(uid, namespace, name, node, container, image, digest, outcome, self._network.loop.time()))
        self._trace(f"kubelet {node}", str(outcome), pod=(namespace, name), container=container, image=image)

    def _logins(self, pod: Json, image: str) -> list[str]:
        """Those of the pod's pull secrets that exist. Raises ValueError."""
        namespace = pod["metadata"].get("namespace") or "default"
        names = [each.get("name") or "" for each in pod["spec"].get("imagePullSecrets") or ()]
        secrets = [self._api.get("Secret", namespace, name) for name in names if name]
        return logins_for(read_reference(image), [each for each in secrets if each])


def _is_over(worker: PodWorker) -> bool:
    return (worker.pod.get("status") or {}).get("phase") in _OVER


def node_object(node: Node) -> Json:
    """The node as its kubelet registers it; the labels of a plan beat the kubelet's own."""
    own = {"beta.kubernetes.io/arch": node.architecture, "beta.kubernetes.io/os": node.os}
    made = fake_node(
        node.name,
        node.architecture,
        os=node.os,
        cpu=str(node.slots),
        labels={**own, **node.labels},
        taints=node.taints,
    )
    if node.states == "nodeInfo":
        made["metadata"]["labels"] = {"kubernetes.io/hostname": node.name, **node.labels}
    if node.states == "labels":
        made["status"]["nodeInfo"] |= {"architecture": "", "operatingSystem": ""}
    return made
