"""Whether a node meets what a pod itself asks of nodes: taints and tolerations, nodeSelector, required node affinity.

These are kube-scheduler's own rules, as in k8s.io/component-helpers/scheduling/corev1, which applies them before it
calls an extender. They serve reports, which say what blocks a pod, and say which requirements a node can meet.
"""

import enum
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import (
    CreatedSpec,
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingSpec,
    Taint,
    Toleration,
)
from extender.kubernetes.reported_v1 import ReportedNode, ReportedNodeSpec, ReportedSpec
from extender.placement.nodes import ARCHITECTURE, LABELS, OPERATING_SYSTEM

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_HARD = ("NoSchedule", "NoExecute")
_NAME_FIELD = "metadata.name"
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


class Rule(enum.StrEnum):
    """The rule of kube-scheduler by which it refuses a node."""

    UNSCHEDULABLE = "unschedulable"
    TAINT = "taint"
    SELECTOR = "selector"
    AFFINITY = "affinity"


class Obstacle(msgspec.Struct, frozen=True, order=True):
    """Why kube-scheduler refuses a node for a pod, and the part of pod or node that says so."""

    rule: Rule
    subject: str


class NodeDemands(msgspec.Struct, frozen=True, dict=True):
    """What a pod asks of its node. `terms` are those of required node affinity, None where there is none."""

    selector: Mapping[str, str] = {}
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def name_platforms(self) -> bool:
        """Whether the platform of a node may decide whether it meets them."""
        return self.terms is not None or not LABELS.keys().isdisjoint(self.selector)

    @functools.cached_property
    def alternatives(self) -> tuple["Alternative", ...]:
        """What a node must meet one of. A term without requirements is none of them, as it matches no node."""
        terms = (NodeSelectorTerm(),) if self.terms is None else self.terms
        return tuple(
            Alternative(index, requirements_of(self.selector, term))
            for index, term in enumerate(terms)
            if self.terms is None or term.match_expressions or term.match_fields
        )


def demands_of(spec: CreatedSpec) -> NodeDemands:
    """What a pod of this spec asks of its node.

    Raises:
        msgspec.ValidationError: a field is not of the type that Kubernetes gives it.
    """
    parts = {"affinity": spec.affinity, "nodeSelector": spec.node_selector, "tolerations": spec.tolerations}
    raw = {name: part for name, part in parts.items() if part}
    return demands_in(msgspec.json.decode(msgspec.json.encode(raw), type=SchedulingSpec))


def demands_in(spec: SchedulingSpec | ReportedSpec) -> NodeDemands:
    """As `demands_of`, of a spec that is decoded."""
    required = spec.affinity and spec.affinity.node_affinity and spec.affinity.node_affinity.required
    return NodeDemands(
        selector=spec.node_selector or {},
        terms=(required.node_selector_terms or ()) if required else None,
        tolerations=spec.tolerations or (),
    )


_NODE = "node.kubernetes.io/"
_GIVEN_TO_DAEMON_PODS = tuple(
    Toleration(key=f"{_NODE}{name}", operator="Exists", effect=effect)
    for name, effect in (
        ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
    )
)  # fmt: skip
_GIVEN_ON_HOST_NETWORK = Toleration(key=f"{_NODE}network-unavailable", operator="Exists", effect="NoSchedule")


def as_daemon_pods(demands: NodeDemands, *, host_network: bool) -> NodeDemands:
    """The demands of a DaemonSet's pods: its controller gives them tolerations (pkg/controller/daemon/util)."""
    given = (*_GIVEN_TO_DAEMON_PODS, *([_GIVEN_ON_HOST_NETWORK] if host_network else ()))
    return msgspec.structs.replace(demands, tolerations=(*demands.tolerations, *given))


def obstacles(demands: NodeDemands, node: ReportedNode) -> tuple[Obstacle, ...]:
    """Why kube-scheduler refuses the node, in the order of its rules; empty if it does not."""
    return (
        *_refusing_taints(demands.tolerations, node.spec or ReportedNodeSpec()),
        *_unmatched_labels(demands.selector, node.labels),
        *_unmatched_terms(demands.terms, node.labels, node.name),
    )


def hard_taints(node: Node) -> tuple[Taint, ...]:
    """The taints that keep pods away which do not tolerate them."""
    return tuple(taint for taint in (node.spec and node.spec.taints) or () if taint.effect in _HARD)


def taint_text(taint: Taint) -> str:
    """The taint as `kubectl` writes it: `key=value:effect`."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration tolerates the taint (Toleration.ToleratesTaint); operators for numbers never do."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Exists":
            return True
        case "Equal":
            return (toleration.value or "") == (taint.value or "")
        case _:
            return False


def selector_requirements(selector: Mapping[str, str]) -> list[NodeSelectorRequirement]:
    """The entries of a nodeSelector as requirements."""
    return [NodeSelectorRequirement(key, "In", (value,)) for key, value in selector.items()]


def requirements_of(selector: Mapping[str, str], term: NodeSelectorTerm) -> list[NodeSelectorRequirement]:
    """The requirements of a term, with the entries of the nodeSelector that are about a platform or the same labels."""
    own = term.match_expressions or ()
    keys = dict.fromkeys((*LABELS, *(each.key for each in own)))
    return [*selector_requirements({key: selector[key] for key in keys if key in selector}), *own]


class Alternative:
    """The requirements of one term and the nodeSelector together; of the nodeSelector alone where there are no terms.

    `index` is the term's. A node can meet them all if it `can_match`.
    """

    def __init__(self, index: int, requirements: Sequence[NodeSelectorRequirement]) -> None:
        self.index = index
        self.requirements = requirements
        self.can_match = can_match(requirements)
        self._on: dict[str, list[NodeSelectorRequirement]] = {ARCHITECTURE: [], OPERATING_SYSTEM: []}
        for each in requirements:
            if each.key in LABELS and each.operator in _OPERATORS:
                self._on[LABELS[each.key]].append(each)

    def allows(self, platform: Platform) -> bool:
        """Whether a node of the platform may meet them, of whatever other labels.

        A requirement of an operator that is not known here is as good as met.
        """
        labels = ((OPERATING_SYSTEM, platform.os), (ARCHITECTURE, platform.architecture))
        return self.can_match and all(is_met(each, value) for label, value in labels for each in self._on[label])


def may_allow(demands: NodeDemands, platform: Platform) -> bool:
    """Whether the selector, and a term if there are any, allow some node of the platform, of whatever other labels."""
    return not demands.name_platforms or any(each.allows(platform) for each in demands.alternatives)


def can_match(requirements: Sequence[NodeSelectorRequirement]) -> bool:
    """Whether a node can meet all of them: those on one label do not exclude each other."""
    by_label: dict[str, list[NodeSelectorRequirement]] = {}
    for each in requirements:
        by_label.setdefault(LABELS.get(each.key, each.key), []).append(each)
    return all(allowed_values(each) != frozenset() for each in by_label.values())


def allowed_values(requirements: Sequence[NodeSelectorRequirement]) -> frozenset[str | None] | None:
    """The values of one label that meet all requirements on it, with None for a node without it; None: endless ones."""
    listed = [
        frozenset[str | None]([None] if each.operator == "DoesNotExist" else each.values or ())
        for each in requirements
        if each.operator in ("In", "DoesNotExist")
    ]
    if not listed:
        return None
    left = listed[0].intersection(*listed)
    left = left.difference(*(each.values or () for each in requirements if each.operator == "NotIn"))
    others = [each for each in requirements if each.operator in ("Exists", "Gt", "Lt")]
    return frozenset(value for value in left if all(is_met(each, value) for each in others))


def is_implied(requirement: NodeSelectorRequirement, present: Iterable[NodeSelectorRequirement]) -> bool:
    """Whether every node that meets those that are `present` meets the requirement."""
    allowed = allowed_values([each for each in present if LABELS.get(each.key, each.key) == requirement.key])
    return allowed is not None and all(is_met(requirement, value) for value in allowed)


def matches(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Whether a node with these labels and this name matches the term; a term without requirements matches none."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    return all(is_met(each, labels.get(each.key)) for each in expressions) and all(
        each.key == _NAME_FIELD and is_met(each, name) for each in fields
    )


def _refusing_taints(tolerations: tuple[Toleration, ...], spec: ReportedNodeSpec) -> Iterator[Obstacle]:
    cordon = Taint(UNSCHEDULABLE, None, "NoSchedule")
    if spec.unschedulable and not any(tolerates(each, cordon) for each in tolerations):
        yield Obstacle(Rule.UNSCHEDULABLE, "spec.unschedulable: true")
    for taint in spec.taints or ():
        if taint.effect not in _HARD or (taint.key == UNSCHEDULABLE and spec.unschedulable):
            continue
        if not any(tolerates(each, taint) for each in tolerations):
            yield Obstacle(Rule.TAINT, taint_text(taint))


def _unmatched_labels(selector: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[Obstacle]:
    for key, value in sorted(selector.items()):
        if labels.get(key) != value:
            yield Obstacle(Rule.SELECTOR, f"{key}={value}")


def _unmatched_terms(
    terms: tuple[NodeSelectorTerm, ...] | None, labels: Mapping[str, str], name: str
) -> Iterator[Obstacle]:
    if terms is None or any(matches(term, labels, name) for term in terms):
        return
    unmet = dict.fromkeys(
        requirement_text(each)
        for term in terms
        for each in term.match_expressions or ()
        if not is_met(each, labels.get(each.key))
    )
    yield Obstacle(Rule.AFFINITY, "; or ".join(unmet) or "no term that any node can match")


def requirement_text(requirement: NodeSelectorRequirement) -> str:
    """The requirement as `key In [a, b]`."""
    values = f" [{', '.join(requirement.values)}]" if requirement.values else ""
    return f"{requirement.key} {requirement.operator}{values}"


def is_met(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Whether a node meets the requirement whose label has this value, None if it has no such label."""
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _is_beyond(requirement.operator, value, values)
        case _:
            return False


def _is_beyond(operator: str, value: str | None, values: tuple[str, ...]) -> bool:
    """Whether the label's number is beyond the requirement's only value; as strconv.ParseInt reads numbers."""
    if value is None or len(values) != 1 or not (_is_int64(value) and _is_int64(values[0])):
        return False
    number, bound = int(value), int(values[0])
    return number > bound if operator == "Gt" else number < bound


_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MOST_DIGITS = 63  # of a label value; Python refuses thousands of digits, and zeros in front count for nothing


def _is_int64(text: str) -> bool:
    is_short = len(text) <= _MOST_DIGITS
    return is_short and _INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63
