"""What keeps a pod off a node: the rules of kube-scheduler's filter plugins, over plain JSON.

They are written from kubernetes 1.36, pkg/scheduler/framework/plugins: nodeunschedulable, nodename, tainttoleration,
nodeaffinity and noderesources (fit.go), in the order in which the default profile runs them, with their reasons. The
kubelet admits pods by some of them. Limits: no host ports, volumes, topology spread or pod affinity; of a pod's
resources cpu, memory and extended ones, without overhead and resize.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from tests.builders import PREFERRED, REQUIRED
from tests.unit.placement.kube_scheduler import allows, matches_term, tolerates

Json = dict[str, Any]
Resources = dict[str, int]
"""Amounts by resource: cpu in thousandths of a core, memory in bytes."""

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_SUFFIXES = {"m": -1, "k": 1000, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class Status(NamedTuple):
    """Why a plugin refuses a node. `unresolvable` is UnschedulableAndUnresolvable: no eviction would help."""

    plugin: str
    reasons: tuple[str, ...]
    unresolvable: bool = True


@dataclass
class NodeInfo:
    """A node and what the pods on it have requested, as the scheduler's cache has them."""

    node: Json
    pods: dict[str, Json] = field(default_factory=dict)
    """By uid."""

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])

    def requested(self) -> Resources:
        """What all its pods request."""
        return _sum(map(pod_requests, self.pods.values()))


def filter_node(pod: Json, info: NodeInfo) -> Status | None:
    """Returns the refusal of the first plugin that refuses the node, or None."""
    for rule in _FILTERS:
        if status := rule(pod, info):
            return status
    return None


def plugin_allows(plugin: str, pod: Json, node: Json) -> bool:
    """Whether this plugin lets the pod onto the node, were nothing else there: what queueing hints ask."""
    rule = _BY_PLUGIN.get(plugin)
    return rule is None or rule(pod, NodeInfo(node)) is None


def preferred_weight(spec: Json, node: Json) -> int:
    """The sum of the weights of the preferred terms that the node matches. An empty term is passed over."""
    terms = _node_affinity(spec).get(PREFERRED) or ()
    return sum(term["weight"] for term in terms if matches_term(term.get("preference") or {}, node))


def named_nodes(spec: Json) -> set[str] | None:
    """The nodes that the required terms name in matchFields, None if a term names none (NodeAffinity's PreFilter)."""
    terms = (_node_affinity(spec).get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    names: set[str] = set()
    for term in terms:
        fields = [each for each in term.get("matchFields") or () if each["operator"] == "In"]
        if not fields:
            return None
        names |= set.intersection(*(set(each["values"]) for each in fields))
    return names if terms else None


def untolerated(spec: Json, node: Json, effects: Sequence[str] = ("NoSchedule", "NoExecute")) -> list[Json]:
    """The node's taints of these effects that the pod does not tolerate."""
    tolerations = spec.get("tolerations") or ()
    taints = (taint for taint in node["spec"].get("taints") or () if taint["effect"] in effects)
    return [taint for taint in taints if not any(tolerates(toleration, taint) for toleration in tolerations)]


def pod_requests(pod: Json) -> Resources:
    """What the pod requests: the sum over its containers and sidecars, or the most that an init container takes."""
    spec = pod["spec"]
    sidecars: Resources = {}
    peaks: list[Resources] = []
    for container in spec.get("initContainers") or ():
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, requests))
        peaks.append(sidecars if container.get("restartPolicy") == "Always" else _sum((sidecars, requests)))
    running = _sum((sidecars, *(_requests(each) for each in spec.get("containers") or ())))
    return {name: max(each.get(name, 0) for each in (running, *peaks)) for name in _names((running, *peaks))}


def allocatable(node: Json) -> Resources:
    """What the node offers to pods."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    return {name: _quantity(name, str(value)) for name, value in offered.items()}


def _filter_unschedulable(pod: Json, info: NodeInfo) -> Status | None:
    if not info.node["spec"].get("unschedulable"):
        return None
    if any(tolerates(each, _UNSCHEDULABLE_TAINT) for each in pod["spec"].get("tolerations") or ()):
        return None
    return Status("NodeUnschedulable", ("node(s) were unschedulable",))


def _filter_name(pod: Json, info: NodeInfo) -> Status | None:
    if pod["spec"].get("nodeName") in (None, "", info.name):
        return None
    return Status("NodeName", ("node(s) didn't match the requested node name",))


def _filter_taints(pod: Json, info: NodeInfo) -> Status | None:
    if untolerated(pod["spec"], info.node):
        return Status("TaintToleration", ("node(s) had untolerated taint(s)",))
    return None


def _filter_labels(pod: Json, info: NodeInfo) -> Status | None:
    if allows(pod["spec"], info.node):
        return None
    return Status("NodeAffinity", ("node(s) didn't match Pod's node affinity/selector",))


def _filter_resources(pod: Json, info: NodeInfo) -> Status | None:
    offered, used, requests = allocatable(info.node), info.requested(), pod_requests(pod)
    reasons = ["Too many pods"] if len(info.pods) + 1 > offered.get("pods", 0) else []
    lacking = [name for name, most in requests.items() if most > offered.get(name, 0) - used.get(name, 0)]
    reasons += [f"Insufficient {name}" for name in lacking if requests[name]]
    if not reasons:
        return None
    unresolvable = any(requests[name] > offered.get(name, 0) for name in lacking)
    return Status("NodeResourcesFit", tuple(reasons), unresolvable)


_Rule = Callable[[Json, NodeInfo], Status | None]
_BY_PLUGIN: dict[str, _Rule] = {
    "NodeUnschedulable": _filter_unschedulable,
    "NodeName": _filter_name,
    "TaintToleration": _filter_taints,
    "NodeAffinity": _filter_labels,
    "NodeResourcesFit": _filter_resources,
}
_FILTERS = tuple(_BY_PLUGIN.values())


def _node_affinity(spec: Json) -> Json:
    return ((spec.get("affinity") or {}).get("nodeAffinity")) or {}


def _requests(container: Json) -> Resources:
    """A container's requests; a limit without a request is one (the API server's defaulting)."""
    resources = container.get("resources") or {}
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: _quantity(name, str(value)) for name, value in stated.items()}


def _sum(parts: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _names(parts: Iterable[Resources]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


@lru_cache(maxsize=256)
def _quantity(name: str, text: str) -> int:
    """A quantity as a whole number, rounded up: in thousandths if it is of cpu."""
    for suffix in ("Ki", "Mi", "Gi", "m", "k", "M", "G"):
        if text.endswith(suffix):
            amount, factor = float(text.removesuffix(suffix)), float(_SUFFIXES[suffix])
            break
    else:
        amount, factor = float(text), 1.0
    exact = amount / 1000 if factor < 0 else amount * factor
    return -int(-(exact * 1000 if name == "cpu" else exact) // 1)
