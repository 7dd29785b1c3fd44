"""Counts starts, restarts and crash loops by workload and architecture, of the pods whose label asks for it.

So a rise on one architecture shows after a share of a workload has moved there. Counts what a watch brings while it
runs: what happened before a pod was first listed is not counted.
"""

import re
from collections.abc import Callable, Set
from typing import NamedTuple

import msgspec

from extender.budgets import Budget, declare_budget
from extender.kubernetes.reported_v1 import ContainerStatus, CountedPod, PodStatus
from extender.metrics import Count, counter_by_labels

OTHER = "other"
"""The label's value for a workload without series of its own, and for an architecture that is not known."""
_LABELS = ("workload", "architecture")
_CRASH_LOOP = "CrashLoopBackOff"
_SCHEDULED_AT = re.compile(r"-[0-9]{8,12}\Z", re.ASCII)  # what a CronJob adds to a Job's name: its minute

STARTS = counter_by_labels(
    "multiarch_workload_starts_total", "Pods with the label of counted pods that began to run.", _LABELS
)
RESTARTS = counter_by_labels(
    "multiarch_workload_restarts_total", "Restarts of containers in pods with the label of counted pods.", _LABELS
)
CRASH_LOOPS = counter_by_labels(
    "multiarch_workload_crash_loops_total",
    "Pods with the label of counted pods that began to wait for a restart since their containers keep failing.",
    _LABELS,
)

_WORKLOADS = declare_budget(
    "outlets.pod_starts.workloads",
    unit="workloads with series of their own",
    total=100,
    most_each=50,
    why="three series for each architecture: 600 in a cluster of two; further workloads count together, as `other`",
)
_PODS = declare_budget(
    "outlets.pod_starts.pods",
    unit="pods whose starts are counted",
    total=20_000,
    most_each=10_000,
    why="0.5 KB each, 10 MB; the starts of further pods are not counted",
)


class _PodState(NamedTuple):
    """What has been counted of a pod."""

    uid: str
    workload: str
    namespace: str
    is_started: bool
    restarts: int
    is_looping: bool


class PodStarts:
    """A `Handler` for the watch of counted pods."""

    def __init__(self, architecture_of: Callable[[str], str]) -> None:
        """`architecture_of` gives the architecture of a node by its name, `OTHER` for one that is not known."""
        self._architecture_of = architecture_of
        self._pods: dict[str, _PodState] = {}
        self._pods_of: dict[str, int] = {}  # of each workload that has series of its own
        self._workload_budget, self._pod_budget = Budget(_WORKLOADS), Budget(_PODS)
        self.synced = False

    def upsert(self, document: msgspec.Raw) -> None:
        """Counts what is new of the pod. Raises msgspec.ValidationError if a field that is read has another type."""
        pod = _POD.decode(document)
        metadata, status = pod.metadata, pod.status
        namespace = metadata.namespace or ""
        key = f"{namespace}/{metadata.name}"
        uid = metadata.uid or ""
        before = self._pods.get(key)
        if before is not None and before.uid != uid:  # a replacement of the same name, whose forerunner's end we missed
            before = before._replace(is_started=False, restarts=0, is_looping=False)
        if before is None and not self._pod_budget.take(namespace):
            return
        containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        workload = before.workload if before else self._enter(f"{namespace}/{workload_of(pod)}", namespace)
        after = _PodState(
            uid,
            workload,
            namespace,
            is_started=(before is not None and before.is_started) or _has_started(status),
            restarts=sum(each.restart_count for each in containers),
            is_looping=(before is not None and before.is_looping) or any(map(_is_looping, containers)),
        )
        self._pods[key] = after
        if before is None:
            before = after
            if self.synced:
                before = _PodState(uid, workload, namespace, is_started=False, restarts=0, is_looping=False)
        if pod.spec.node_name:
            self._count(before, after, self._architecture_of(pod.spec.node_name))

    def delete(self, key: str) -> None:
        """Forgets the pod; a workload without pods gives its series back."""
        state = self._pods.pop(key, None)
        if state is None:
            return
        self._pod_budget.give_back(state.namespace)
        if state.workload == OTHER:
            return
        self._pods_of[state.workload] -= 1
        if not self._pods_of[state.workload]:
            del self._pods_of[state.workload]
            self._workload_budget.give_back(state.namespace)
            for rows in (STARTS, RESTARTS, CRASH_LOOPS):
                for labels in [labels for labels in rows if labels[0] == state.workload]:
                    del rows[labels]

    def keep_only(self, keys: Set[str]) -> None:
        """Forgets all pods but these, which are all that were listed; from now on pods that are new count in full."""
        for key in [key for key in self._pods if key not in keys]:
            self.delete(key)
        self.synced = True

    def _enter(self, workload: str, namespace: str) -> str:
        """Counts one more pod of the workload; returns the label's value for it."""
        pods = self._pods_of.get(workload, 0)
        if not pods and not self._workload_budget.take(namespace):
            return OTHER
        self._pods_of[workload] = pods + 1
        return workload

    def _count(self, before: _PodState, after: _PodState, architecture: str) -> None:
        labels = (after.workload, architecture)
        for rows, amount in (
            (STARTS, after.is_started - before.is_started),
            (RESTARTS, after.restarts - before.restarts),
            (CRASH_LOOPS, after.is_looping - before.is_looping),
        ):
            rows.setdefault(labels, Count()).inc(max(0, amount))


def workload_of(pod: CountedPod) -> str:
    """The name of the Deployment, CronJob or other controller that the pod is of, else its own."""
    metadata = pod.metadata
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    if owner is None:
        return metadata.name or ""
    if owner.kind == "ReplicaSet":
        return owner.name.removesuffix(f"-{(metadata.labels or {}).get('pod-template-hash', '')}")
    return _SCHEDULED_AT.sub("", owner.name) if owner.kind == "Job" else owner.name


def _has_started(status: PodStatus) -> bool:
    """Whether a container of it has begun to run, which one of a pod that the kubelet refused has not."""
    ended = any(each.state.terminated for each in status.container_statuses or ())
    return ended or status.phase in ("Running", "Succeeded")


def _is_looping(status: ContainerStatus) -> bool:
    return status.state.waiting is not None and status.state.waiting.reason == _CRASH_LOOP


_POD = msgspec.json.Decoder(CountedPod)
