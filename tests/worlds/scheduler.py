"""kube-scheduler: binds pending pods to nodes, and asks an extender if it has one.

It is written from kubernetes 1.36, pkg/scheduler (schedule_one.go, eventhandlers.go). Pods are tried one after the
other; what an extender costs, all of them wait for. Limits: the informers have no delay, every node is looked at (as in
clusters below 100 nodes), of the score plugins there are TaintToleration, NodeAffinity and NodeResourcesFit, and the
event FailedScheduling is in the trace and is no object. `scheduler_election` plays who of several works.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.memory_http import Client
from testbed.memory_network import Network
from tests.worlds.api_errors import ApiError
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import key_of
from tests.worlds.extender_calls import Extender, ExtenderError
from tests.worlds.node_rules import NodeInfo, Status, filter_node, named_nodes
from tests.worlds.node_scores import score_nodes
from tests.worlds.plan import ExtenderConfig
from tests.worlds.pod_statuses import set_condition
from tests.worlds.preemption import fit_message, preempt
from tests.worlds.scheduling_queue import (
    EXTENDER,
    ClusterEvent,
    QueuedPod,
    SchedulingQueue,
    node_events,
    priority_of,
)
from tests.worlds.trace import Trace

Json = dict[str, Any]
_OVER = ("Succeeded", "Failed")


class KubeScheduler:
    """One kube-scheduler, for the pods whose schedulerName is `name`. It works while `run` runs."""

    def __init__(
        self,
        network: Network,
        api: ApiServer,
        trace: Trace,
        chance: random.Random,
        *,
        name: str = "default-scheduler",
        extender: ExtenderConfig | None = None,
        extender_url: str = "",
        address: str = "",
        pops_from_backoff: bool = True,
    ) -> None:
        """`extender_url` is the urlPrefix, `address` that of the scheduler's own pod or node.

        `pops_from_backoff` is the gate SchedulerPopFromBackoffQ, which the second scheduler's manifest turns off.
        """
        self.name = name
        self._network = network
        self._api = api
        self._trace = trace
        self._chance = chance
        self._pops_from_backoff = pops_from_backoff
        self._client = Client(network, address)
        self._extender = Extender(self._client, extender_url, extender) if extender else None
        self._is_running = False
        self._start()
        api.subscribe("Node", self._on_node)
        api.subscribe("Pod", self._on_pod)

    async def run(self) -> None:
        """Schedules until it is cancelled. It begins with what the API server has, as after a start."""
        self._start()
        self._is_running = True
        for node in self._api.list("Node"):
            self._on_node("ADDED", None, node)
        for pod in self._api.list("Pod"):
            self._on_pod("ADDED", None, pod)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._queue.run())
                while True:
                    await self._schedule_one(await self._queue.pop(), tasks)
        finally:
            self._is_running = False
            self._client.close()

    def _start(self) -> None:
        self._queue = SchedulingQueue(self._network.loop.time, pops_from_backoff=self._pops_from_backoff)
        self._nodes: dict[str, Json] = {}
        self._pods_on: dict[str, dict[str, Json]] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, tuple[str, Json]] = {}

    async def _schedule_one(self, queued: QueuedPod, tasks: asyncio.TaskGroup) -> None:
        pod = queued.pod
        if pod["metadata"].get("deletionTimestamp") or queued.uid in self._assumed:
            self._queue.done(queued)
            return
        nodes = {name: NodeInfo(node, dict(self._pods_on.get(name, {}))) for name, node in self._nodes.items()}
        if not nodes:
            self._fail(queued, "Unschedulable", "no nodes available to schedule pods", (), "")
            return
        try:
            fitting, statuses, rejected_by = await self._find_nodes(pod, nodes)
            if not fitting:
                await self._preempt(queued, nodes, statuses, rejected_by)
                return
            chosen = fitting[0] if len(fitting) == 1 else await self._choose(pod, [nodes[name] for name in fitting])
        except ExtenderError as exc:
            self._fail(queued, "SchedulerError", str(exc), (), "")
            return
        self._assumed[queued.uid] = chosen
        self._nominated.pop(queued.uid, None)
        self._pods_on.setdefault(chosen, {})[queued.uid] = pod
        tasks.create_task(self._bind(queued, chosen))

    async def _find_nodes(
        self, pod: Json, nodes: Mapping[str, NodeInfo]
    ) -> tuple[list[str], dict[str, Status], set[str]]:
        """The nodes that fit, why others do not, and the plugins that refused any (findNodesThatFitPod).

        Raises ExtenderError.
        """
        statuses: dict[str, Status] = {}
        rejected_by: set[str] = set()
        nominated = (pod.get("status") or {}).get("nominatedNodeName") or ""
        if nominated in nodes:
            try:
                fitting = await self._filter(pod, [nodes[nominated]], statuses, rejected_by)
            except ExtenderError as exc:
                self._trace(self.name, "nominated node failed", pod=key_of(pod), error=str(exc))
                fitting = []
            if fitting:
                return fitting, statuses, rejected_by
        candidates = list(nodes.values())
        names = named_nodes(pod["spec"])
        if names is not None:
            refusal = Status("NodeAffinity", ("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
            statuses |= {name: refusal for name in nodes if name not in names}
            candidates = [info for info in candidates if info.name in names]
            rejected_by.add("NodeAffinity")
        return await self._filter(pod, candidates, statuses, rejected_by), statuses, rejected_by

    async def _filter(
        self, pod: Json, candidates: Iterable[NodeInfo], statuses: dict[str, Status], rejected_by: set[str]
    ) -> list[str]:
        """The names of those that pass the plugins, then the extender. Raises ExtenderError."""
        nodes: list[Json] = []
        for info in candidates:
            status = filter_node(pod, self._with_nominated(pod, info))
            if status:
                statuses[info.name] = status
                rejected_by.add(status.plugin)
            else:
                nodes.append(info.node)
        fitting = [str(node["metadata"]["name"]) for node in nodes]
        if not fitting or not self._extender or not self._extender.has("filter"):
            return fitting
        asked_at = asyncio.get_running_loop().time()
        try:
            filtered = await self._extender.filter(pod, nodes)
        except ExtenderError as exc:
            self._trace(self.name, "filter failed", pod=key_of(pod), error=str(exc), asked_at=asked_at)
            if self._extender.is_ignorable:
                return fitting
            raise
        for name, reason in filtered.failed.items():
            statuses[name] = Status(EXTENDER, (reason,), unresolvable=False)
        for name, reason in filtered.unresolvable.items():
            statuses[name] = Status(EXTENDER, (reason,))
        refused = dict(sorted({**filtered.failed, **filtered.unresolvable}.items()))  # JSON states no order
        self._trace(self.name, "filtered", pod=key_of(pod), passed=filtered.passed, refused=refused, asked_at=asked_at)
        if len(filtered.passed) != len(fitting):
            rejected_by.add(EXTENDER)
        return list(filtered.passed)

    def _with_nominated(self, pod: Json, info: NodeInfo) -> NodeInfo:
        """The node as it will be with the pods nominated to it, but for those of lower priority."""
        added = {
            uid: other
            for uid, (node, other) in self._nominated.items()
            if node == info.name and uid != pod["metadata"]["uid"] and priority_of(other) >= priority_of(pod)
        }
        return NodeInfo(info.node, {**info.pods, **added}) if added else info

    async def _choose(self, pod: Json, nodes: Sequence[NodeInfo]) -> str:
        """One of those with the highest score. An extender that fails to give scores gives none."""
        scores = score_nodes(pod, nodes)
        if self._extender and self._extender.has("prioritize"):
            try:
                for name, score in (await self._extender.prioritize(pod, [info.node for info in nodes])).items():
                    if name in scores:
                        scores[name] += score
            except ExtenderError as exc:
                self._trace(self.name, "prioritize failed", pod=key_of(pod), error=str(exc))
        best = max(scores.values())
        return self._chance.choice([name for name, score in scores.items() if score == best])

    async def _preempt(
        self,
        queued: QueuedPod,
        nodes: Mapping[str, NodeInfo],
        statuses: Mapping[str, Status],
        rejected_by: set[str],
    ) -> None:
        outcome = await preempt(
            queued.pod, nodes, statuses, self._extender, lambda info: self._with_nominated(queued.pod, info)
        )
        for victim in outcome.victims:
            await self._evict(victim, queued.pod, outcome.node)
        reasons = [status.reasons for name, status in statuses.items() if name in nodes]
        message = fit_message(len(nodes), reasons, _after(outcome.message))
        self._fail(queued, "Unschedulable", message, rejected_by, outcome.node)

    async def _evict(self, victim: Json, preemptor: Json, node: str | None) -> None:
        namespace, name = key_of(victim)
        found = self._api.get("Pod", namespace, name)
        if found is None or found["metadata"]["uid"] != victim["metadata"]["uid"]:
            return
        self._trace(self.name, "Preempted", pod=key_of(victim), by=key_of(preemptor), node=node)
        status = found.setdefault("status", {})
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{self.name}: preempting to accommodate a higher priority pod",
        }
        if set_condition(status, condition, self._api.now()):
            self._api.set_status("Pod", namespace, name, status)
        try:
            await self._api.delete("Pod", namespace, name, user="system:kube-scheduler")
        except ApiError as exc:  # it is gone, or a policy keeps it
            self._trace(self.name, "eviction failed", pod=(namespace, name), error=str(exc))

    async def _bind(self, queued: QueuedPod, node: str) -> None:
        namespace, name = key_of(queued.pod)
        try:
            await self._api.bind(namespace, name, node)
        except ApiError as exc:
            self._forget(queued.uid)
            self._queue.move(ClusterEvent("Pod", "Delete", queued.pod))
            self._fail(queued, "SchedulerError", f"binding rejected: {exc}", (), "")
            return
        self._queue.done(queued)
        self._trace(self.name, "Scheduled", pod=(namespace, name), node=node)

    def _forget(self, uid: str) -> None:
        node = self._assumed.pop(uid, None)
        if node is not None:
            self._pods_on.get(node, {}).pop(uid, None)

    def _fail(
        self, queued: QueuedPod, reason: str, message: str, rejected_by: Iterable[str], nominated: str | None
    ) -> None:
        """Puts the pod back into the queue and says why in its status (handleSchedulingFailure)."""
        namespace, name = key_of(queued.pod)
        pod = self._api.get("Pod", namespace, name)
        if pod is None or pod["metadata"]["uid"] != queued.uid or pod["spec"].get("nodeName"):
            self._queue.done(queued)
            return
        queued.pod = pod
        self._queue.add_unschedulable(queued, set(rejected_by))
        self._trace(self.name, "FailedScheduling", pod=(namespace, name), reason=reason, message=message)
        status = {**(pod.get("status") or {})}
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        status["conditions"] = list(status.get("conditions") or ())
        changed = set_condition(status, condition, self._api.now())
        if nominated is not None:
            self._nominate(queued.uid, pod, nominated)
            changed = changed or (status.get("nominatedNodeName") or "") != nominated
            status.pop("nominatedNodeName", None)
            status |= {"nominatedNodeName": nominated} if nominated else {}
        if changed:
            self._api.set_status("Pod", namespace, name, status)

    def _nominate(self, uid: str, pod: Json, node: str) -> None:
        self._nominated.pop(uid, None)
        if node:
            self._nominated[uid] = (node, pod)

    def _on_node(self, change: str, old: Json | None, new: Json | None) -> None:
        if not self._is_running:
            return
        if new is not None:
            self._nodes[new["metadata"]["name"]] = new
        elif old is not None:
            self._nodes.pop(old["metadata"]["name"], None)
        if change == "MODIFIED" and old and new:
            for event in node_events(old, new):
                self._queue.move(event)
        else:
            self._queue.move(ClusterEvent("Node", "Add" if change == "ADDED" else "Delete", old, new))

    def _on_pod(self, change: str, old: Json | None, new: Json | None) -> None:
        """A pod that is over is none to the scheduler: its informer leaves them out."""
        if not self._is_running:
            return
        was = None if old is None or _is_over(old) else old
        now = None if new is None or change == "DELETED" or _is_over(new) else new
        if now is None:
            if was is not None:
                self._remove(was)
        elif node := now["spec"].get("nodeName"):
            self._add_to_node(now, node, is_new=was is None or not was["spec"].get("nodeName"))
        elif now["spec"].get("schedulerName") == self.name:
            self._take_pending(was, now)

    def _add_to_node(self, pod: Json, node: str, *, is_new: bool) -> None:
        uid = pod["metadata"]["uid"]
        if is_new:
            self._forget(uid)
            self._nominated.pop(uid, None)
            self._queue.delete(uid)
        self._pods_on.setdefault(node, {})[uid] = pod

    def _take_pending(self, was: Json | None, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._assumed:
            return
        if nominated := (pod.get("status") or {}).get("nominatedNodeName"):
            self._nominate(uid, pod, nominated)
        if was is None:
            self._queue.add(pod)
        else:
            self._queue.update(was, pod)

    def _remove(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._queue.delete(uid)
        was_counted = bool(pod["spec"].get("nodeName")) or uid in self._assumed or uid in self._nominated
        self._forget(uid)
        self._nominated.pop(uid, None)
        if node := pod["spec"].get("nodeName"):
            self._pods_on.get(node, {}).pop(uid, None)
        if was_counted:
            self._queue.move(ClusterEvent("Pod", "Delete", pod))


def _is_over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in _OVER


def _after(message: str) -> str:
    """What a FitError says of preemption, behind what DynamicResources says to each pod (their PostFilter)."""
    return f"no new claims to deallocate, preemption: {message}" if message else ""
