"""The queue of kube-scheduler: which pending pod is tried when.

It is written from kubernetes 1.36, pkg/scheduler/backend/queue (scheduling_queue.go, active_queue.go,
backoff_queue.go), with queueing hints, which are on since 1.34. A pod whose attempt failed goes to the unschedulable
pods, and an event that one of the plugins that rejected it finds worth it moves it on: to the back-off queue if its
back-off of 1 to 10 s is not over, else to the active one. An extender finds every event worth it. A pod that failed by
an error has no such plugin and waits its back-off out. Limits: one profile, no gangs, no PreEnqueue plugin but
SchedulingGates, and of the events those of pods and nodes.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.worlds.node_rules import plugin_allows

Json = dict[str, Any]

EXTENDER = "Extender"
"""The plugin that stands for all extenders (framework.ExtenderName)."""

INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
FLUSH_SECONDS = 300.0  # podMaxInUnschedulablePodsDuration
_FLUSH_PERIOD_SECONDS = 30.0
_BACKOFF_PERIOD_SECONDS = 1.0

_NODE_EVENTS = {
    "NodeUnschedulable": ("Add", "UpdateTaint"),
    "NodeName": ("Add",),
    "TaintToleration": ("Add", "UpdateTaint"),
    "NodeAffinity": ("Add", "UpdateLabel"),
    "NodeResourcesFit": ("Add", "UpdateAllocatable"),
}
_POD_EVENTS = {"NodeResourcesFit": ("Delete",)}
_OWN_EVENTS = {
    "NodeUnschedulable": ("UpdateToleration",),
    "TaintToleration": ("UpdateToleration",),
    "SchedulingGates": ("UpdateSchedulingGatesEliminated",),
}


class ClusterEvent(NamedTuple):
    """Something that may make a pod schedulable: of a `Node`, of an assigned `Pod`, or of the pending pod's `Own`."""

    resource: str
    action: str
    old: Json | None = None
    new: Json | None = None


@dataclass
class QueuedPod:
    """A pending pod and what became of it so far. `rejected_by` are the plugins that its last attempt failed by."""

    pod: Json
    order: int
    attempts: int = 0
    unschedulable_count: int = 0
    consecutive_errors: int = 0
    rejected_by: tuple[str, ...] = ()
    since: float = 0.0
    """When it was last put into the queue."""
    in_flight_events: list[ClusterEvent] = field(default_factory=list)

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return str(self.pod["metadata"]["uid"])

    @property
    def is_gated(self) -> bool:
        """Whether a scheduling gate is left on it."""
        return bool(self.pod["spec"].get("schedulingGates"))


class SchedulingQueue:
    """The pending pods of one scheduler. `run` moves them on as time passes, for as long as it is not cancelled."""

    def __init__(self, clock: Callable[[], float], *, pops_from_backoff: bool) -> None:
        """`pops_from_backoff` is the gate SchedulerPopFromBackoffQ, on by default since 1.33."""
        self._clock = clock
        self._pops_from_backoff = pops_from_backoff
        self._made = 0
        self._active: dict[str, QueuedPod] = {}
        self._backoff: dict[str, QueuedPod] = {}
        self._unschedulable: dict[str, QueuedPod] = {}
        self._in_flight: dict[str, QueuedPod] = {}
        self._filled = asyncio.Event()

    async def run(self) -> None:
        """Flushes the back-off queue every second, and what has been unschedulable for five minutes every 30."""
        next_flush = self._clock() + _FLUSH_PERIOD_SECONDS
        while True:
            await asyncio.sleep(_BACKOFF_PERIOD_SECONDS - self._clock() % _BACKOFF_PERIOD_SECONDS)
            for queued in [each for each in self._backoff.values() if not self._is_backing_off(each)]:
                self._activate(queued)
            if self._clock() >= next_flush:
                next_flush += _FLUSH_PERIOD_SECONDS
                old = [each for each in self._unschedulable.values() if self._clock() - each.since > FLUSH_SECONDS]
                for queued in old:
                    self._requeue(queued)

    def add(self, pod: Json) -> None:
        """A new pending pod."""
        self._made += 1
        self._activate(QueuedPod(pod, self._made, since=self._clock()))

    def update(self, old: Json, new: Json) -> None:
        """A pending pod was changed."""
        uid = new["metadata"]["uid"]
        events = _own_events(old, new)
        if queued := self._in_flight.get(uid):
            queued.pod = new
            queued.in_flight_events += events
        elif queued := self._active.get(uid) or self._backoff.get(uid):
            queued.pod = new
        elif queued := self._unschedulable.get(uid):
            queued.pod = new
            if any(_is_worth_requeuing(queued, event) for event in events):
                self._requeue(queued)
        else:
            self.add(new)

    def delete(self, uid: str) -> None:
        """A pod is pending no more."""
        for queue in (self._active, self._backoff, self._unschedulable):
            queue.pop(uid, None)

    def move(self, event: ClusterEvent) -> None:
        """Something happened in the cluster: moves on the pods that it may make schedulable."""
        for queued in self._in_flight.values():
            queued.in_flight_events.append(event)
        for queued in [each for each in self._unschedulable.values() if _is_worth_requeuing(each, event)]:
            self._requeue(queued)

    async def pop(self) -> QueuedPod:
        """Waits for the pod to try next: of the highest priority, the one that waits longest. `done` ends the try."""
        while not (candidates := list(self._active.values()) or self._poppable()):
            self._filled.clear()
            await self._filled.wait()
        queued = min(candidates, key=self._turn if self._active else self._backoff_turn)
        self.delete(queued.uid)
        queued.attempts += 1
        queued.in_flight_events = []
        self._in_flight[queued.uid] = queued
        return queued

    def done(self, queued: QueuedPod) -> None:
        """The pod is bound or gone."""
        self._in_flight.pop(queued.uid, None)

    def add_unschedulable(self, queued: QueuedPod, rejected_by: Collection[str]) -> None:
        """The attempt failed by these plugins, or without any by an error."""
        self.done(queued)
        queued.rejected_by = tuple(sorted(rejected_by))
        if queued.rejected_by:
            queued.unschedulable_count += 1
            queued.consecutive_errors = 0
        else:
            queued.consecutive_errors += 1
        queued.since = self._clock()
        if not queued.rejected_by or any(_is_worth_requeuing(queued, each) for each in queued.in_flight_events):
            self._requeue(queued)
        else:
            self._unschedulable[queued.uid] = queued

    def _poppable(self) -> list[QueuedPod]:
        """With the gate, an empty active queue is filled from the pods that back off, but not after an error."""
        return [each for each in self._backoff.values() if each.rejected_by] if self._pops_from_backoff else []

    def _requeue(self, queued: QueuedPod) -> None:
        """After its back-off, if that is not over (requeuePodWithQueueingStrategy)."""
        if not self._is_backing_off(queued):
            self._activate(queued)
            return
        self.delete(queued.uid)
        (self._unschedulable if queued.is_gated else self._backoff)[queued.uid] = queued
        self._filled.set()

    def _activate(self, queued: QueuedPod) -> None:
        self.delete(queued.uid)
        if queued.is_gated:
            queued.rejected_by = ("SchedulingGates",)
            self._unschedulable[queued.uid] = queued
            return
        self._active[queued.uid] = queued
        self._filled.set()

    def _is_backing_off(self, queued: QueuedPod) -> bool:
        return self._backoff_end(queued) >= self._aligned(self._clock())

    def _backoff_end(self, queued: QueuedPod) -> float:
        failures = queued.consecutive_errors or queued.unschedulable_count
        if not failures:
            return -1.0
        seconds = min(INITIAL_BACKOFF_SECONDS * 2 ** min(failures - 1, 10), MAX_BACKOFF_SECONDS)
        return self._aligned(queued.since + seconds)

    def _aligned(self, time: float) -> float:
        """With the gate, all times of one second are one."""
        return time // _BACKOFF_PERIOD_SECONDS if self._pops_from_backoff else time

    def _turn(self, queued: QueuedPod) -> tuple[float, ...]:
        return (-priority_of(queued.pod), queued.since, queued.order)

    def _backoff_turn(self, queued: QueuedPod) -> tuple[float, ...]:
        return (self._backoff_end(queued), *self._turn(queued))


def priority_of(pod: Json) -> int:
    """The pod's priority, zero without."""
    return int(pod["spec"].get("priority") or 0)


def node_events(old: Json, new: Json) -> list[ClusterEvent]:
    """What changed of a node as far as scheduling goes (NodeSchedulingPropertiesChange)."""
    changes: dict[str, Callable[[Json], Any]] = {
        "UpdateTaint": lambda node: node["spec"].get("taints") or [],
        "UpdateLabel": lambda node: node["metadata"].get("labels") or {},
        "UpdateAllocatable": lambda node: (node.get("status") or {}).get("allocatable") or {},
        "UpdateCondition": _conditions,
        "UpdateAnnotation": lambda node: node["metadata"].get("annotations") or {},
    }
    actions = [action for action, part in changes.items() if part(old) != part(new)]
    if old["spec"].get("unschedulable") and not new["spec"].get("unschedulable"):
        actions.append("UpdateTaint")
    return [ClusterEvent("Node", action, old, new) for action in actions]


def _conditions(node: Json) -> dict[str, str]:
    return {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}


def _own_events(old: Json, new: Json) -> list[ClusterEvent]:
    """What changed of a pending pod (PodSchedulingPropertiesChange); an update that is nothing else is one too."""
    actions = []
    if (old["metadata"].get("labels") or {}) != (new["metadata"].get("labels") or {}):
        actions.append("UpdateLabel")
    if old["spec"].get("schedulingGates") and not new["spec"].get("schedulingGates"):
        actions.append("UpdateSchedulingGatesEliminated")
    if len(old["spec"].get("tolerations") or ()) != len(new["spec"].get("tolerations") or ()):
        actions.append("UpdateToleration")
    return [ClusterEvent("Own", action, old, new) for action in actions or ["Update"]]


def _is_worth_requeuing(queued: QueuedPod, event: ClusterEvent) -> bool:
    """Whether a plugin that rejected the pod finds the event worth another attempt (isPodWorthRequeuing)."""
    return any(_hints(plugin, queued.pod, event) for plugin in queued.rejected_by)


def _hints(plugin: str, pod: Json, event: ClusterEvent) -> bool:
    """The queueing hint of the plugin for the event."""
    if plugin == EXTENDER:
        return True
    if event.resource == "Own":
        return event.action in _OWN_EVENTS.get(plugin, ())
    if event.resource == "Pod":
        return event.action in _POD_EVENTS.get(plugin, ())
    if event.action not in _NODE_EVENTS.get(plugin, ()) or event.new is None:
        return False
    allows = plugin_allows(plugin, pod, event.new)
    if plugin == "NodeResourcesFit":
        return allows
    return allows and (event.old is None or not plugin_allows(plugin, pod, event.old))
