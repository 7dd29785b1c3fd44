"""What enforcing would change, from what a service has observed, the pods that there are, and the nodes.

The service and the command agree by `workload_of` on whose a pod is. The structs that `observed` gives are what
`audit --observed -o json` prints; their schema has a version, which changes with any change that a reader could notice.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from extender.images.platform import Compatibility, InvalidPlatform, Platform, parse_platform, runs_on
from extender.kubernetes.audited_v1 import AuditedNode, AuditedPod
from extender.placement.annotations import PREFIX
from extender.placement.mutation import AdmissionOutcome
from extender.placement.nodes import platform_of_node
from extender.reports.quantities import parse_quantity, requested
from extender.reports.workloads import WorkloadKey

SCHEMA = f"{PREFIX}observed/v1"
# k8s.io/apimachinery/pkg/util/rand: what a Deployment adds to the names of its ReplicaSets
_TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}\Z", re.ASCII)
# k8s.io/kubernetes/pkg/controller/cronjob: minutes since 1970, added to the names of a CronJob's Jobs
_SCHEDULED_MINUTES = re.compile(r"-\d{8}\Z", re.ASCII)
_PATCHED = (AdmissionOutcome.PATCHED.value, AdmissionOutcome.ASSUMED.value)
_NODE_PODS = 110.0  # the kubelet's default limit, for a node that states none
_FINISHED = ("Succeeded", "Failed")


def workload_of(namespace: str, owner: tuple[str, str] | None, name: str, generate_name: str) -> WorkloadKey:
    """The workload of a pod, by the kind and name of its controller and by its own name.

    No other object is read. A ReplicaSet whose name ends as a Deployment names them counts as that Deployment. Jobs
    whose names end as a CronJob names them are one row, and so are pods without a controller that have one
    `generateName`; the end of these rows' names is `*`.
    """
    if owner is None:
        return WorkloadKey(namespace, "Pod", f"{generate_name}*" if generate_name else name)
    kind, owner_name = owner
    if kind == "ReplicaSet" and (found := _TEMPLATE_HASH.search(owner_name)):
        return WorkloadKey(namespace, "Deployment", owner_name[: found.start()])
    if kind == "Job" and (found := _SCHEDULED_MINUTES.search(owner_name)):
        return WorkloadKey(namespace, kind, f"{owner_name[: found.start()]}-*")
    return WorkloadKey(namespace, kind, owner_name)


class ObservedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What a service has observed of one workload.

    `reviewed` counts pods by what would have become of them at their creation, `filtered` those that the scheduler
    asked about by what the answer would have been. `refused` of them would have got no node, the last one if
    `is_refused`. `platforms` are those to which the last one would be kept, null if to none; `reason` says why.
    """

    namespace: str
    kind: str
    name: str
    first_seen: str
    last_seen: str
    reviewed: dict[str, int]
    filtered: dict[str, int]
    refused: int
    is_refused: bool
    platforms: list[str] | None
    reason: str

    @property
    def key(self) -> WorkloadKey:
        """What tells it from others."""
        return WorkloadKey(self.namespace, self.kind, self.name)

    @property
    def pods(self) -> int:
        """How many pods were observed: at their creation, or by the scheduler where no review came."""
        return sum(self.reviewed.values()) or sum(self.filtered.values())


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has observed since it started; times are in RFC 3339.

    `left_out` counts workloads that were dropped because there were too many. `restricts`: the settings keep pods to
    the platforms of their images, by required affinity or by the scheduler's verbs.
    """

    since: str
    until: str
    restricts: bool
    left_out: int
    workloads: list[ObservedWorkload]


def merged(parts: Sequence[Observations]) -> Observations:
    """What several replicas have observed together; at least one."""
    rows: dict[WorkloadKey, ObservedWorkload] = {}
    for part in parts:
        for row in part.workloads:
            before = rows.get(row.key)
            rows[row.key] = _joined(before, row) if before else row
    return Observations(
        since=min(part.since for part in parts),
        until=max(part.until for part in parts),
        restricts=any(part.restricts for part in parts),
        left_out=sum(part.left_out for part in parts),
        workloads=[rows[key] for key in sorted(rows)],
    )


def _joined(one: ObservedWorkload, other: ObservedWorkload) -> ObservedWorkload:
    older, newer = sorted((one, other), key=lambda row: row.last_seen)
    return msgspec.structs.replace(
        newer,
        first_seen=min(older.first_seen, newer.first_seen),
        reviewed=dict(Counter(older.reviewed) + Counter(newer.reviewed)),
        filtered=dict(Counter(older.filtered) + Counter(newer.filtered)),
        refused=older.refused + newer.refused,
    )


class ChangedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What enforcing would change for one workload.

    Of `pods` observed pods, `refused` would have got no node, `held` would have waited for an image to become known,
    `unresolved` would have been let through without it, and `patched` would have been given something. `running` of its
    pods have a node now. Of these `moved` would have got a node of another platform, by the platform that they are on.
    """

    namespace: str
    kind: str
    name: str
    pods: int
    refused: int
    held: int
    unresolved: int
    patched: int
    running: int
    moved: dict[str, int]
    platforms: list[str] | None
    reason: str

    @property
    def is_changed(self) -> bool:
        """Whether enforcing changes where its pods may run, or when they start."""
        return bool(self.refused or self.held or self.moved)


class NodesNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """What the pods that would move take on nodes of these platforms.

    `nodes` is how many more nodes are needed of the size of the largest one there, null where there is none to go by.
    """

    platforms: list[str]
    pods: int
    cpu_cores: float
    memory_bytes: int
    nodes: int | None
    node_cpu_cores: float
    node_memory_bytes: int


class ObservedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What would change if the observed pods were no longer only observed.

    `moved` counts running pods by the platform that they are on. `workloads` has every observed workload. `problems`
    says what the figures leave out.
    """

    schema: str
    since: str
    until: str
    pods: int
    refused: int
    held: int
    unresolved: int
    running: int
    moved: dict[str, int]
    nodes_needed: list[NodesNeeded]
    workloads: list[ChangedWorkload]
    problems: list[str]


class LivePods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of the cluster that have not finished, and its nodes."""

    pods: Sequence[AuditedPod]
    nodes: Sequence[AuditedNode]
    level_label: str = ""


def observed(given: Observations, live: LivePods, compatibility: Compatibility) -> ObservedReport:
    """The report. O(pods + workloads × nodes)."""
    return _Reporter(given, live, compatibility).report()


class _Size(msgspec.Struct):
    """Cores, bytes and pods: what a pod takes, or what a node has left."""

    cpu_cores: float
    memory_bytes: float
    pods: float = 1.0

    def times(self, other: "_Size") -> int:
        """How often `other` fits in."""
        pairs = (
            (self.cpu_cores, other.cpu_cores),
            (self.memory_bytes, other.memory_bytes),
            (self.pods, other.pods),
        )
        return max(0, min(int(has / takes + 1e-9) for has, takes in pairs if takes > 0))

    def take(self, other: "_Size", number: int) -> None:
        """Takes so many of `other` out."""
        self.cpu_cores -= other.cpu_cores * number
        self.memory_bytes -= other.memory_bytes * number
        self.pods -= other.pods * number


class _Reporter:
    def __init__(self, given: Observations, live: LivePods, compatibility: Compatibility) -> None:
        self._given = given
        self._compatibility = compatibility
        self._nodes = {(node.metadata and node.metadata.name) or "": node for node in live.nodes}
        self._platform_of = {name: platform_of_node(node, live.level_label) for name, node in self._nodes.items()}
        self._bound: dict[WorkloadKey, list[AuditedPod]] = {}
        self._free = {name: _allocatable(node) for name, node in self._nodes.items()}
        for pod in live.pods:
            node = pod.spec.node_name or ""
            if node not in self._nodes or (pod.status and pod.status.phase in _FINISHED):
                continue
            self._bound.setdefault(_workload_of(pod), []).append(pod)
            self._free[node].take(_size(pod), 1)

    def report(self) -> ObservedReport:
        rows = [self._change(row) for row in self._given.workloads]
        return ObservedReport(
            schema=SCHEMA,
            since=self._given.since,
            until=self._given.until,
            pods=sum(row.pods for row in rows),
            refused=sum(row.refused for row in rows),
            held=sum(row.held for row in rows),
            unresolved=sum(row.unresolved for row in rows),
            running=sum(row.running for row in rows),
            moved=dict(sum((Counter(row.moved) for row in rows), Counter[str]())),
            nodes_needed=list(self._needed()),
            workloads=rows,
            problems=list(self._problems()),
        )

    def _change(self, row: ObservedWorkload) -> ChangedWorkload:
        would = row.reviewed
        held = would.get(AdmissionOutcome.GATED.value, 0) if would else row.filtered.get("retried", 0)
        unresolved = would.get(AdmissionOutcome.UNRESOLVED.value, 0)
        moved = Counter(str(self._platform_of[pod.spec.node_name or ""]) for pod in self._moved(row))
        return ChangedWorkload(
            namespace=row.namespace,
            kind=row.kind,
            name=row.name,
            pods=row.pods,
            refused=row.refused,
            held=held,
            unresolved=unresolved,
            patched=sum(would.get(each, 0) for each in _PATCHED),
            running=len(self._bound.get(row.key, ())),
            moved=dict(moved),
            platforms=row.platforms,
            reason=row.reason,
        )

    def _moved(self, row: ObservedWorkload) -> Iterator[AuditedPod]:
        """Its pods on nodes that do not run its images, if there are nodes that do."""
        platforms = _parsed(row.platforms)
        if row.is_refused or not platforms or not self._given.restricts or not self._nodes_of(platforms):
            return
        for pod in self._bound.get(row.key, ()):
            platform = self._platform_of[pod.spec.node_name or ""]
            if platform and not runs_on(platforms, platform, self._compatibility):
                yield pod

    def _nodes_of(self, platforms: frozenset[Platform]) -> list[str]:
        return [
            name
            for name, platform in self._platform_of.items()
            if platform and runs_on(platforms, platform, self._compatibility)
        ]

    def _needed(self) -> Iterator[NodesNeeded]:
        """For each set of platforms, the largest pods first; nodes that take no new pods are left out."""
        groups: dict[tuple[str, ...], list[_Size]] = {}
        for row in self._given.workloads:
            for pod in self._moved(row):
                groups.setdefault(tuple(row.platforms or ()), []).append(_size(pod))
        for platforms, sizes in sorted(groups.items()):
            names = self._nodes_of(_parsed(platforms))
            usable = [name for name in names if not _is_cordoned(self._nodes[name])]
            largest = max((_allocatable(self._nodes[name]) for name in usable), key=_by_size, default=None)
            nodes = _more_nodes(sizes, [self._free[name] for name in usable], largest) if largest else None
            yield NodesNeeded(
                platforms=list(platforms),
                pods=len(sizes),
                cpu_cores=round(sum(size.cpu_cores for size in sizes), 6),
                memory_bytes=int(sum(size.memory_bytes for size in sizes)),
                nodes=nodes,
                node_cpu_cores=largest.cpu_cores if largest else 0.0,
                node_memory_bytes=int(largest.memory_bytes) if largest else 0,
            )

    def _problems(self) -> Iterator[str]:
        if self._given.left_out:
            yield f"{self._given.left_out} workloads are left out, since the service keeps no more"
        if not self._given.restricts:
            yield (
                "the settings keep no pod from a node: no pod moves unless admission.node_affinity is required, or the "
                "scheduler asks the service"
            )
        if not self._given.workloads:
            yield "no pod was observed; pods are observed from their creation on, once the mode is observe"


def _more_nodes(sizes: Sequence[_Size], free: Sequence[_Size], new: _Size) -> int | None:
    """How many new nodes the pods need beside what is free; None if one of them fits on no such node."""
    kinds = Counter((size.cpu_cores, size.memory_bytes) for size in sizes)
    opened: list[_Size] = []
    for (cpu_cores, memory_bytes), number in sorted(kinds.items(), reverse=True):
        size = _Size(cpu_cores, memory_bytes)
        left = _fill(size, number, (*free, *opened))
        if left and not new.times(size):
            return None
        while left:
            opened.append(_Size(new.cpu_cores, new.memory_bytes, new.pods))
            left = _fill(size, left, opened[-1:])
    return len(opened)


def _fill(size: _Size, number: int, nodes: Iterable[_Size]) -> int:
    """Takes so many of `size` out of the nodes, as far as they fit; returns how many are left."""
    left = number
    for node in nodes:
        placed = min(left, node.times(size))
        node.take(size, placed)
        left -= placed
    return left


def _by_size(size: _Size) -> tuple[float, float]:
    return size.cpu_cores, size.memory_bytes


def _allocatable(node: AuditedNode) -> _Size:
    has: Mapping[str, str | int | float] = (node.status and node.status.allocatable) or {}
    amounts = (parse_quantity(has.get(name, 0)) for name in ("cpu", "memory", "pods"))
    cpu_cores, memory_bytes, pods = amounts
    return _Size(cpu_cores, memory_bytes, pods or _NODE_PODS)


def _size(pod: AuditedPod) -> _Size:
    return _Size(requested(pod.spec, "cpu"), requested(pod.spec, "memory"))


def _is_cordoned(node: AuditedNode) -> bool:
    return bool(node.spec and node.spec.unschedulable)


def _workload_of(pod: AuditedPod) -> WorkloadKey:
    metadata = pod.metadata
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    return workload_of(
        metadata.namespace or "",
        (owner.kind, owner.name) if owner else None,
        metadata.name or "",
        metadata.generate_name or "",
    )


def _parsed(texts: Iterable[str] | None) -> frozenset[Platform]:
    found = set[Platform]()
    for text in texts or ():
        try:
            found.add(parse_platform(text))
        except InvalidPlatform:
            continue  # a word that an image states, and that no node has
    return frozenset(found)
