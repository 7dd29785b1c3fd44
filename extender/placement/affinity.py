"""Plans the words that keep a pod on its images' platforms, given the nodeSelector and affinity that it already has.

This file plans and `additions` writes. Node labels state operating system and architecture, and a level where the
operator has a label for it (`level_words`); so the words are never narrower than the images' platforms. The scheduler
verbs check variants. Words that keep a pod off no node are not written, as kube-scheduler evaluates each of them for
each node: an entry of a nodeSelector in 25 to 50 ns, a term of affinity in 250 to 700 ns.
"""

import enum
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from extender.images.platform import Compatibility, Platform, runs_on
from extender.kubernetes.core_v1 import (
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from extender.placement.facts import ImageFact, RunsOn
from extender.placement.level_words import NO_LEVELS, LevelWords
from extender.placement.node_match import OPERATORS, is_met
from extender.placement.nodes import ARCHITECTURE, LABELS, OPERATING_SYSTEM, USUAL
from extender.placement.policy import PREFIX, possible_platforms

NO_NODE = NodeSelectorRequirement(f"{PREFIX}no-common-platform", "Exists")
"""A requirement that no node satisfies, for pods that must wait since every node would be wrong."""

_HIGHEST_WEIGHT = 100


class AffinityMode(enum.StrEnum):
    """Which kinds of node affinity are written."""

    NONE = "none"
    REQUIRED = "required"
    PREFERRED = "preferred"
    BOTH = "both"

    @property
    def required(self) -> bool:
        """Whether pods get required affinity to their images' platforms."""
        return self in (AffinityMode.REQUIRED, AffinityMode.BOTH)

    @property
    def preferred(self) -> bool:
        """Whether multi-arch pods get preferred affinity to the preferred architectures."""
        return self in (AffinityMode.PREFERRED, AffinityMode.BOTH)


Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""Lists of requirements to AND to a term; several lists make several ORed terms of it. Empty: no change."""


class Plan(msgspec.Struct, frozen=True):
    """The required affinity to write.

    `selector` has entries for the pod's nodeSelector; then the additions are empty. `additions` has an entry for each
    existing term; if there are no terms, at most one entry for new terms.
    `contradicted` counts the terms that allow none of the images' platforms. `selector_contradicts`: whether the
    nodeSelector allows none of them. `impossible`: whether no node that the pod's own selector and terms allow can be
    right; then every term requires `NO_NODE`. `misleads`: labels, which do not state the platform of every node, keep
    the pod off one that is right for it, or do not keep it off one that is wrong.
    """

    selector: Mapping[str, str] = {}
    additions: tuple[Alternatives, ...] = ()
    contradicted: int = 0
    selector_contradicts: bool = False
    impossible: bool = False


def node_platforms(facts: Sequence[ImageFact], compatibility: Compatibility) -> frozenset[Platform]:
    """The platforms, without variant, of nodes on which all known images run.

    Empty if no image is known or no platform is common to all. The candidates are the platforms that the images name,
    and amd64 and arm64, which may run images of other architectures.
    """
    known = [fact.platforms for fact in facts if isinstance(fact, RunsOn)]
    systems = {platform.os for platform in frozenset[Platform]().union(*known)}
    usual = {Platform(os, architecture) for os in systems for architecture in ("amd64", "arm64")}
    return frozenset(
        Platform(node.os, node.architecture)
        for node in possible_platforms(known) | usual
        if all(runs_on(platforms, node, compatibility) for platforms in known)
    )


def is_unrestricted(affinity: NodeAffinity, node_selector: Mapping[str, str]) -> bool:
    """Whether a pod's author has restricted no platform, so that a plan for it depends on `nodes` alone."""
    return not (affinity.required and affinity.required.node_selector_terms) and LABELS.keys().isdisjoint(node_selector)


def plan_required(
    affinity: NodeAffinity,
    node_selector: Mapping[str, str],
    nodes: frozenset[Platform],
    cluster: frozenset[Platform] = frozenset(),
    levels: LevelWords = NO_LEVELS,
) -> Plan:
    """What keeps a pod with this affinity and nodeSelector on `nodes`, in the fewest words.

    A term that already allows only `nodes` gets no addition, and neither does an empty term, which matches no node. A
    term that allows none of `nodes` gets `NO_NODE`. Without `nodes` all do. `cluster` holds the platforms of the
    cluster's nodes: the pod is kept off these, and off amd64 and arm64 on Linux, which may come. If it is empty, none
    is known, and the pod is kept off all others. If a single platform is left, the plan is a nodeSelector.
    """
    wanted = _Wanted(nodes, _others(nodes, cluster), levels, _products)
    plan = _plan(affinity, node_selector, wanted)
    if plan.impossible or not any(plan.additions):
        return plan
    found = _alternatives(_of_selector(node_selector, levels), wanted)
    if (
        found is None
        or len(found) != 1
        or not all(item.operator == "In" and len(item.values or ()) == 1 for item in found[0])
    ):
        return plan
    entries = {item.key: value for item in found[0] for value in item.values or ()}
    return msgspec.structs.replace(plan, selector=entries, additions=((),) * len(plan.additions))


def plan_narrower(
    affinity: NodeAffinity,
    node_selector: Mapping[str, str],
    nodes: frozenset[Platform],
    cluster: frozenset[Platform] = frozenset(),
    levels: LevelWords = NO_LEVELS,
) -> Plan:
    """As `plan_required`, for a stored pod, whose terms may get requirements but no term may be added beside them.

    Where `nodes` are no product of operating systems × architectures, a term keeps the pod to a part of them, to one
    that the cluster has if there is one. The plan is never a nodeSelector, which the policy for the service's own
    account does not let it change.
    """
    present = frozenset(Platform(platform.os, platform.architecture) for platform in cluster)
    wanted = _Wanted(nodes, _others(nodes, cluster), levels, lambda groups: _one_product(groups, present))
    return _plan(affinity, node_selector, wanted)


def _others(nodes: frozenset[Platform], cluster: frozenset[Platform]) -> "_Others":
    """The platforms, without variant, that a node may have and that are not among `nodes`."""
    if not cluster:
        return None
    return frozenset(USUAL).union(Platform(platform.os, platform.architecture) for platform in cluster) - nodes


_NO_NODE_ALONE: Alternatives = ((NO_NODE,),)


def _plan(affinity: NodeAffinity, node_selector: Mapping[str, str], wanted: "_Wanted") -> Plan:
    """The plan without a nodeSelector."""
    selector = _of_selector(node_selector, wanted.levels)
    nodes, alone = wanted.nodes, _alternatives(selector, wanted._replace(products=_products))
    terms = (affinity.required and affinity.required.node_selector_terms) or ()
    if not terms:
        alternatives = _NO_NODE_ALONE if alone is None else alone
        return Plan(
            additions=(alternatives,) if alternatives else (),
            selector_contradicts=bool(nodes) and alone is None,
            impossible=alone is None,
        )
    present = [
        (*selector, *_decisive(term.match_expressions or (), wanted.levels))
        for term in terms
        if term.match_expressions or term.match_fields
    ]
    found = [_alternatives(requirements, wanted) for requirements in present]
    open_terms = [term for term in terms if term.match_expressions or term.match_fields]
    in_order = iter(
        () if item is None and NO_NODE in (term.match_expressions or ()) else _NO_NODE_ALONE if item is None else item
        for term, item in zip(open_terms, found, strict=True)
    )
    return Plan(
        additions=tuple(next(in_order) if term.match_expressions or term.match_fields else () for term in terms),
        contradicted=sum(item is None for item in found) if alone is not None else 0,
        selector_contradicts=bool(nodes) and alone is None,
        impossible=bool(found) and all(item is None for item in found),
    )


def _of_selector(node_selector: Mapping[str, str], levels: LevelWords) -> list[NodeSelectorRequirement]:
    return _decisive([NodeSelectorRequirement(key, "In", (value,)) for key, value in node_selector.items()], levels)


def _decisive(requirements: Sequence[NodeSelectorRequirement], levels: LevelWords) -> list[NodeSelectorRequirement]:
    """The requirements on labels that tell a platform or a level: those on others are as good as met."""
    labels = LABELS.keys() | {item.key for item in levels.values()}
    return [item for item in requirements if item.key in labels]


def plan_preferred(
    affinity: NodeAffinity, preference: Mapping[str, int], architectures: frozenset[str], labels: Mapping[str, str]
) -> tuple[PreferredSchedulingTerm, ...]:
    """One term for each preferred architecture among `architectures`, with weight 10 for each point of preference.

    It is about nodes that have these `labels`. Empty if the pod's own preferred affinity names architectures already.
    """
    own = [item for term in affinity.preferred or () for item in term.preference.match_expressions or ()]
    if any(LABELS.get(item.key) == ARCHITECTURE for item in own):
        return ()
    others = tuple(NodeSelectorRequirement(key, "In", (value,)) for key, value in sorted(labels.items()))
    return tuple(
        PreferredSchedulingTerm(
            min(points * 10, _HIGHEST_WEIGHT),
            NodeSelectorTerm((NodeSelectorRequirement(ARCHITECTURE, "In", (architecture,)), *others)),
        )
        for architecture, points in sorted(preference.items())
        if points > 0 and architecture in architectures
    )


class _Product(NamedTuple):
    """Nodes of each of these operating systems × architectures, and what they must state of their level."""

    systems: list[str]
    architectures: list[str]
    level: NodeSelectorRequirement | None = None


_MET_BY_NO_PLATFORM = ("DoesNotExist", "Gt", "Lt")  # an architecture is not a number

_Groups = Mapping[NodeSelectorRequirement | None, list[Platform]]
"""Nodes by what they must state of their level."""
_Others = frozenset[Platform] | None
"""The platforms to keep a pod off; None for all that there can be."""


class _Wanted(NamedTuple):
    """The nodes to keep a pod on, those to keep it off, and how to divide those that an existing term allows."""

    nodes: frozenset[Platform]
    others: _Others
    levels: LevelWords
    products: Callable[[_Groups], list[_Product]]


def _alternatives(present: Sequence[NodeSelectorRequirement], wanted: _Wanted) -> Alternatives | None:
    """What to AND to `present` so that it allows `nodes` and none of `others`, in the fewest requirements.

    Empty if it already does, None if it allows none of `nodes`.
    """
    groups: dict[NodeSelectorRequirement | None, list[Platform]] = {}
    for node in _allowed_nodes(present, wanted.nodes):
        groups.setdefault(wanted.levels.get(node), []).append(node)
    if not groups:
        return None
    others = wanted.others
    if others is not None and len(groups) > 1:  # nodes of one level are others to those of another
        others = others | wanted.nodes
    wrong = None if others is None else _allowed_nodes(present, others)
    found = tuple(_restriction(present, product, wrong) for product in wanted.products(groups))
    return found if any(found) else ()


def _restriction(
    present: Sequence[NodeSelectorRequirement], product: _Product, wrong: Sequence[Platform] | None
) -> tuple[NodeSelectorRequirement, ...]:
    """What to AND to `present`, which allows the nodes in `wrong`, to keep these off the product; None: any other."""
    systems, architectures, level = product
    by_architecture = _missing(present, ARCHITECTURE, architectures)
    by_system = _missing(present, OPERATING_SYSTEM, systems)
    by_level = () if level is None or level in present else (level,)
    if wrong is None:
        return (*by_architecture, *by_system, *by_level)
    wrong = [node for node in wrong if node.os not in systems or node.architecture not in architectures]
    if not wrong:
        return by_level
    if by_architecture and not any(node.architecture in architectures for node in wrong):
        return (*by_architecture, *by_level)
    if by_system and not any(node.os in systems for node in wrong):
        return (*by_system, *by_level)
    return (*by_architecture, *by_system, *by_level)


def _products(groups: _Groups) -> list[_Product]:
    """The nodes as sorted products of operating systems × architectures: the fewest with disjoint operating systems."""
    found = []
    for level, nodes in groups.items():
        products: dict[tuple[str, ...], list[str]] = {}
        for system, architectures in _by_system(nodes).items():
            products.setdefault(tuple(sorted(architectures)), []).append(system)
        found += [_Product(systems, list(architectures), level) for architectures, systems in products.items()]
    return found


def _one_product(groups: _Groups, cluster: Set[Platform]) -> list[_Product]:
    """One sorted product within the nodes: one of the cluster's, else with Linux, and of those one of the largest."""
    candidates = [
        _Product(
            [system for system, others in by_system.items() if architectures <= others], sorted(architectures), level
        )
        for level, nodes in groups.items()
        for by_system in [_by_system(nodes)]
        for architectures in (*by_system.values(), *({node.architecture} for node in nodes))
    ]

    def rank(product: _Product) -> tuple[bool, bool, int, list[str], list[str]]:
        systems, architectures, _ = product
        is_there = any(platform.os in systems and platform.architecture in architectures for platform in cluster)
        return not is_there, "linux" not in systems, -len(systems) * len(architectures), systems, architectures

    return [min(candidates, key=rank)]


def _by_system(nodes: Sequence[Platform]) -> dict[str, set[str]]:
    """The architectures of each operating system, sorted by operating system."""
    found: dict[str, set[str]] = {}
    for node in sorted(nodes):
        found.setdefault(node.os, set()).add(node.architecture)
    return found


def _missing(
    present: Sequence[NodeSelectorRequirement], label: str, values: Sequence[str]
) -> tuple[NodeSelectorRequirement, ...]:
    """The requirement that `label` is one of `values`; empty if `present` already allows no other value."""
    about = [item for item in present if LABELS.get(item.key) == label]
    listed = [frozenset(item.values or ()) for item in about if item.operator == "In"]
    unlisted = [item.values or () for item in about if item.operator == "NotIn"]
    allowed = listed[0].intersection(*listed).difference(*unlisted) if listed else frozenset[str]()
    is_void = any(item.operator in _MET_BY_NO_PLATFORM for item in about)
    is_restricted = bool(listed) and (is_void or allowed <= set(values))
    return () if is_restricted else (NodeSelectorRequirement(label, "In", tuple(values)),)


def _allowed_nodes(present: Sequence[NodeSelectorRequirement], nodes: Set[Platform]) -> list[Platform]:
    """Those of the nodes that meet `present`, sorted. Each label's value is looked at once."""
    systems = {os for os in {node.os for node in nodes} if _allows(present, OPERATING_SYSTEM, os)}
    architectures = {
        architecture
        for architecture in {node.architecture for node in nodes}
        if _allows(present, ARCHITECTURE, architecture)
    }
    return sorted(node for node in nodes if node.os in systems and node.architecture in architectures)


def _allows(present: Sequence[NodeSelectorRequirement], label: str, value: str) -> bool:
    return all(_admits(item, value) for item in present if LABELS.get(item.key) == label)


def _admits(requirement: NodeSelectorRequirement, value: str) -> bool:
    """Whether a node whose label has `value` satisfies the requirement; an unknown operator counts as satisfied."""
    return requirement.operator not in OPERATORS or is_met(requirement, value)
