"""Plans the node affinity that keeps a pod on its images' platforms, beside the nodeSelector and affinity it has.

This file plans and `additions` writes. Node labels state operating system and architecture, and a level by
`LEVEL_LABEL`. A requirement that keeps a pod off no node is not written, as kube-scheduler evaluates each of them for
each node: an entry of a nodeSelector in 25 to 50 ns, a term of affinity in 250 to 700 ns. Nor is one in a term that
matches no node, or that says it already.
"""

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

from extender.images.platform import Compatibility, Platform, normalize_platform, runs_on, variants_of
from extender.kubernetes.core_v1 import NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm
from extender.placement.node_match import (
    NodeDemands,
    PlatformRequirements,
    can_match,
    is_implied,
    is_met,
    is_open,
    requirements_of,
)
from extender.placement.nodes import ARCHITECTURE, LABELS, LEVEL_LABEL, OPERATING_SYSTEM, PREFIX, USUAL
from extender.placement.policy import possible_platforms

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


RightNodes = Mapping[Platform, NodeSelectorRequirement | None]
"""The nodes on which images run, by platform without variant, with what their level must be; None for any level."""

Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""Lists of requirements to AND to a term; several lists make several ORed terms of it. Empty: no change."""


class RequiredNodes(NamedTuple):
    """The nodeSelector and required affinity to write.

    `selector` has entries for the pod's nodeSelector; then the additions are empty. `additions` has an entry for each
    existing term; if there are no terms, at most one entry for new terms. `contradiction` says what the pod's author
    has written that allows no node on which the images run. `impossible`: there is no node that both allow; then every
    term that a node could match requires `NO_NODE`.
    """

    selector: Mapping[str, str] = {}
    additions: tuple[Alternatives, ...] = ()
    contradiction: str = ""
    impossible: bool = False


def right_nodes(
    known: Collection[frozenset[Platform]], cluster: Set[Platform], compatibility: Compatibility
) -> RightNodes:
    """The nodes on which images of each of these platforms run, in a cluster of these. None if no image is known.

    The candidates are the platforms that the images name, and amd64 and arm64, which may run images of others.
    """
    run = partial(_all_run, known, compatibility)
    systems = {platform.os for platforms in known for platform in platforms}
    usual = {Platform(os, architecture) for os in systems for architecture in ("amd64", "arm64")}
    nodes = {Platform(node.os, node.architecture) for node in possible_platforms(known) | usual if run(node)}
    stated = cluster | frozenset[Platform]().union(*known)
    found = {}
    for node in sorted(nodes):
        baseline = normalize_platform(node.os, node.architecture)
        levels = [level for level in _levels_of(node, stated) if level != baseline]
        good = [level for level in levels if run(level)]
        if not run(baseline):
            level = NodeSelectorRequirement(LEVEL_LABEL, "In", tuple(_level_values(good)))
        else:  # a level is too low for arm alone, whose baseline is not the lowest
            wrong = [level for level in levels if level in cluster and level not in good]
            level = NodeSelectorRequirement(LEVEL_LABEL, "NotIn", tuple(_level_values(wrong)))
        if level.values or level.operator == "NotIn":
            found[node] = level if level.values else None
    return found


def _all_run(known: Collection[frozenset[Platform]], compatibility: Compatibility, node: Platform) -> bool:
    return all(runs_on(platforms, node, compatibility) for platforms in known)


def _levels_of(node: Platform, stated: Iterable[Platform]) -> Iterable[Platform]:
    variants = sorted({each.variant for each in stated if (each.os, each.architecture) == (node.os, node.architecture)})
    known = (*variants_of(node.architecture), *variants)
    return dict.fromkeys(normalize_platform(node.os, node.architecture, variant) for variant in known)


def _level_values(levels: Iterable[Platform]) -> Iterator[str]:
    """The values that state one of the levels, in both documented ways."""
    for level in levels:
        if re.fullmatch(r"v\d+(?:\.\d+)?", level.variant, re.ASCII):
            yield level.variant
            yield f"{level.architecture}-{level.variant}"


def plan_required(
    demands: NodeDemands, nodes: RightNodes, cluster: Set[Platform] = frozenset(), *, stored: bool = False
) -> RequiredNodes:
    """What keeps a pod with these demands on `nodes`, in the fewest requirements.

    A term that already allows only `nodes` gets no addition, and neither does one that matches no node. A term that
    allows none of `nodes` gets `NO_NODE`. Without `nodes` all do. `cluster` holds the platforms of the cluster's nodes:
    the pod is kept off these, and off amd64 and arm64 on Linux, which may come. If it is empty, none is known, and the
    pod is kept off all others. If a single platform is left, the plan is a nodeSelector.

    `stored`: a pod that is stored may get requirements, but no term beside its own and no nodeSelector. Where `nodes`
    are no product of operating systems × architectures, a term keeps it to a part of them.
    """
    wanted = _NodeGoal(nodes, _others(nodes, cluster))
    selector = requirements_of(demands.selector, NodeSelectorTerm())
    alone = _alternatives(selector, wanted)
    entries = {} if stored else _entries(alone)
    contradiction = _SELECTOR_CONTRADICTS if nodes and alone is None else ""
    if not demands.terms:
        added = () if entries else _or_no_node(alone, selector)
        return RequiredNodes(entries, (added,) if added else (), contradiction, impossible=alone is None)
    if stored:
        wanted = wanted._replace(part_of=frozenset(_right_platforms(nodes, cluster)))
    additions, wrong = list[Alternatives](), 0
    for term in demands.terms:
        present = requirements_of(demands.selector, term)
        found = _alternatives(present, wanted) if is_open(term) else ()
        wrong += found is None
        additions.append(_or_no_node(found, present))
    impossible = wrong > 0 and wrong == sum(map(is_open, demands.terms))
    if wrong and not contradiction and nodes:
        contradiction = (
            f"{wrong} of {len(additions)} terms of the pod's node affinity allow no node that the images run on"
        )
    if impossible or not any(additions) or not entries:
        return RequiredNodes({}, tuple(additions), contradiction, impossible)
    return RequiredNodes(entries, ((),) * len(additions), contradiction)


_SELECTOR_CONTRADICTS = "nodeSelector allows no node that the images run on"


def _others(nodes: RightNodes, cluster: Set[Platform]) -> frozenset[Platform] | None:
    """The platforms, without variant, that a node may have and that are not among `nodes`; None for all there are."""
    if not cluster:
        return None
    return frozenset(USUAL).union(Platform(node.os, node.architecture) for node in cluster) - nodes.keys()


def _right_platforms(nodes: RightNodes, cluster: Set[Platform]) -> Iterator[Platform]:
    """Those of the cluster that are among `nodes`, of their level too, without variant."""
    for each in cluster:
        node = Platform(each.os, each.architecture)
        if node in nodes and ((level := nodes[node]) is None or is_met(level, each.variant)):
            yield node


def _entries(alone: Alternatives | None) -> Mapping[str, str]:
    """The requirements as entries of a nodeSelector; none if they are more than that can say."""
    if alone is None or len(alone) != 1:
        return {}
    found = {item.key: value for item in alone[0] if item.operator == "In" for value in item.values or ()}
    return found if sum(len(item.values or ()) for item in alone[0]) == len(found) == len(alone[0]) else {}


def _or_no_node(found: Alternatives | None, present: Sequence[NodeSelectorRequirement]) -> Alternatives:
    """What to add to a term; one that allows none of the nodes is kept from all, unless it matches none already."""
    if found is None:
        return ((NO_NODE,),) if _is_matched(present) else ()
    return found


def _is_matched(present: Sequence[NodeSelectorRequirement]) -> bool:
    return NO_NODE not in present and can_match(present)


def plan_preferred(
    own: Iterable[PreferredSchedulingTerm], preference: Mapping[str, int], architectures: Set[str]
) -> tuple[PreferredSchedulingTerm, ...]:
    """One term for each preferred architecture among `architectures`, with weight 10 for each point of preference.

    Empty if the pod's own preferred affinity names architectures already.
    """
    named = [item for term in own for item in term.preference.match_expressions or ()]
    if any(LABELS.get(item.key) == ARCHITECTURE for item in named):
        return ()
    return tuple(
        PreferredSchedulingTerm(
            min(points * 10, _HIGHEST_WEIGHT),
            NodeSelectorTerm((NodeSelectorRequirement(ARCHITECTURE, "In", (architecture,)),)),
        )
        for architecture, points in sorted(preference.items())
        if points > 0 and architecture in architectures
    )


class _Product(NamedTuple):
    """Nodes of each of these operating systems × architectures, and what they must state of their level."""

    systems: Sequence[str]
    architectures: Sequence[str]
    level: NodeSelectorRequirement | None = None


_Groups = Mapping[NodeSelectorRequirement | None, Sequence[Platform]]
"""Nodes by what they must state of their level."""


class _NodeGoal(NamedTuple):
    """The nodes to keep a pod on, and those to keep it off, None for any other.

    `part_of`: one product of the nodes is enough, of those that a cluster of these has if there is one.
    """

    nodes: RightNodes
    others: frozenset[Platform] | None
    part_of: frozenset[Platform] | None = None


def _alternatives(present: Sequence[NodeSelectorRequirement], wanted: _NodeGoal) -> Alternatives | None:
    """What to AND to `present` so that it allows the wanted nodes and no others, in the fewest requirements.

    Empty if it already does, None if it allows none of them.
    """
    if not _is_matched(present):
        return None
    platforms, levels = PlatformRequirements(present), [item for item in present if item.key == LEVEL_LABEL]
    groups: dict[NodeSelectorRequirement | None, list[Platform]] = {}
    for node, level in wanted.nodes.items():
        if platforms.allow(node) and (level is None or can_match([*levels, level])):
            groups.setdefault(level, []).append(node)
    if not groups:
        return None
    wrong = None
    if wanted.others is not None:
        alike = next(iter(groups.values())) if len(groups) == 1 else ()  # one level's nodes are others to another's
        wrong = [node for node in wanted.others | (wanted.nodes.keys() - alike) if platforms.allow(node)]
    products = _products(groups) if wanted.part_of is None else [_largest_product(groups, wanted.part_of)]
    found = tuple(_restriction(present, product, wrong) for product in products)
    return found if any(found) else ()


def _restriction(
    present: Sequence[NodeSelectorRequirement], product: _Product, wrong: Sequence[Platform] | None
) -> tuple[NodeSelectorRequirement, ...]:
    """What to AND to `present`, which allows the nodes in `wrong`, to keep these off the product; None: any other."""
    systems, architectures, level = product
    names_architecture = names_system = True
    if wrong is not None:
        wrong = [node for node in wrong if node.os not in systems or node.architecture not in architectures]
        names_system = any(node.architecture in architectures for node in wrong)
        names_architecture = any(node.os in systems for node in wrong) or bool(wrong and not names_system)
    needed = (
        NodeSelectorRequirement(ARCHITECTURE, "In", tuple(architectures)) if names_architecture else None,
        NodeSelectorRequirement(OPERATING_SYSTEM, "In", tuple(systems)) if names_system else None,
        level,
    )
    return tuple(item for item in needed if item and item not in present and not is_implied(item, present))


def _products(groups: _Groups) -> list[_Product]:
    """The nodes as sorted products of operating systems × architectures: the fewest with disjoint operating systems."""
    found = []
    for level, nodes in groups.items():
        products: dict[tuple[str, ...], list[str]] = {}
        for system, architectures in _by_system(nodes).items():
            products.setdefault(tuple(sorted(architectures)), []).append(system)
        found += [_Product(systems, architectures, level) for architectures, systems in products.items()]
    return found


def _largest_product(groups: _Groups, cluster: Set[Platform]) -> _Product:
    """One sorted product within the nodes: one of the cluster's, else with Linux, and of those one of the largest."""
    candidates = [
        _Product(
            [system for system, others in by_system.items() if architectures <= others], sorted(architectures), level
        )
        for level, nodes in groups.items()
        for by_system in [_by_system(nodes)]
        for architectures in (*by_system.values(), *({node.architecture} for node in nodes))
    ]

    def rank(product: _Product) -> tuple[bool, bool, int, Sequence[str], Sequence[str]]:
        systems, architectures, _ = product
        is_there = any(platform.os in systems and platform.architecture in architectures for platform in cluster)
        return not is_there, "linux" not in systems, -len(systems) * len(architectures), systems, architectures

    return min(candidates, key=rank)


def _by_system(nodes: Iterable[Platform]) -> dict[str, set[str]]:
    """The architectures of each operating system, sorted by operating system."""
    found: dict[str, set[str]] = {}
    for node in sorted(nodes):
        found.setdefault(node.os, set()).add(node.architecture)
    return found
