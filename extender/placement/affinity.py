"""Plans the node affinity that keeps a pod on its images' platforms, beside the nodeSelector and affinity it has.

This file plans and `additions` writes. There is one form: required node affinity to architectures and, where an
operating system of the cluster's nodes is left out, to operating systems, ANDed to each term of the pod. Nothing is
written that keeps a pod off no node, as kube-scheduler evaluates each requirement for each node, nor what a term says
already.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

from extender.images.platform import ARCHITECTURES, Compatibility, Platform, normalize_platform, runs_on
from extender.kubernetes.core_v1 import NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm
from extender.placement.additions import NO_NODE, AddedTerm, Requirements
from extender.placement.node_match import (
    NodeDemands,
    is_implied,
    may_allow,
)
from extender.placement.nodes import ARCHITECTURE, LABELS, OPERATING_SYSTEM, USUAL
from extender.placement.policy import possible_platforms

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


class RequiredNodes(NamedTuple):
    """The required affinity to write.

    `contradiction` says why `terms` allow no node, or what the pod's author has written that allows none on which the
    images run. `impossible`: there is no node that both allow; then every term that a node could match requires
    `NO_NODE`.
    """

    terms: tuple[AddedTerm, ...] = ()
    contradiction: str = ""
    impossible: bool = False


def right_nodes(known: Collection[frozenset[Platform]], compatibility: Compatibility) -> frozenset[Platform]:
    """The nodes on which images of each of these platforms run, by platform without variant.

    The candidates are the platforms that the images name, and amd64 and arm64, which may run images of others.
    """
    systems = {platform.os for platforms in known for platform in platforms}
    usual = {Platform(os, each.architecture) for os in systems for each in USUAL}
    named = {_bare(each) for each in possible_platforms(known)}
    return frozenset(filter(partial(_all_run, known, compatibility), named | usual))


def _all_run(known: Collection[frozenset[Platform]], compatibility: Compatibility, node: Platform) -> bool:
    node = normalize_platform(node.os, node.architecture)
    return all(runs_on(platforms, node, compatibility) for platforms in known)


def _bare(platform: Platform) -> Platform:
    return Platform(platform.os, platform.architecture)


def possible_nodes(cluster: Set[Platform]) -> frozenset[Platform]:
    """The nodes that there may be in a cluster of these platforms, by platform without variant.

    Any cluster may get amd64 and arm64 on Linux. One of which no node is known may have Windows, on amd64 alone.
    """
    return frozenset(USUAL).union(map(_bare, cluster) if cluster else (Platform("windows", "amd64"),))


def plan_required(demands: NodeDemands, nodes: Set[Platform], cluster: Set[Platform]) -> RequiredNodes:
    """What keeps a pod with these demands on `nodes`, in a cluster of these platforms; none: they are not known.

    A pod has one operating system. So where `nodes` are of several that do not share their architectures, the pod is
    kept to one of those that its author allows: one that the cluster has, Linux first.
    """
    possible = possible_nodes(cluster)
    nodes = _with_shared_architectures(demands, nodes, possible, cluster)
    architectures, systems = {node.architecture for node in nodes}, {node.os for node in nodes}
    requirements = [_one_of(ARCHITECTURE, architectures)]
    if not cluster or not systems.issuperset(node.os for node in possible):
        requirements.append(_one_of(OPERATING_SYSTEM, systems))
    return _keep(demands, nodes, possible - nodes if cluster else None, requirements)


def plan_system(demands: NodeDemands, os: str, cluster: Set[Platform]) -> RequiredNodes:
    """What keeps a pod with these demands, whose images run on any architecture, on nodes of an operating system."""
    possible = possible_nodes(cluster)
    nodes = {Platform(os, each) for each in ARCHITECTURES.union(node.architecture for node in possible)}
    return _keep(demands, nodes, possible - nodes if cluster else None, [_one_of(OPERATING_SYSTEM, {os})])


def _one_of(label: str, values: Iterable[str]) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(label, "In", tuple(sorted(values)))


def _with_shared_architectures(
    demands: NodeDemands, nodes: Set[Platform], possible: Set[Platform], cluster: Set[Platform]
) -> Set[Platform]:
    """The nodes of all operating systems, or of one if there may be a wrong node among all systems × architectures."""
    if len({node.os for node in nodes}) < 2:
        return nodes
    chosen = {node for node in nodes if may_allow(demands, node)} or nodes
    systems = {node.os for node in chosen & possible} or {node.os for node in chosen}
    architectures = {node.architecture for node in nodes if node.os in systems}
    if any(node.os in systems and node.architecture in architectures for node in possible - nodes):
        present = {node.os for node in map(_bare, cluster) if node in chosen}
        systems = {min(present or systems, key=lambda os: (os != "linux", os))}
    return {node for node in nodes if node.os in systems}


def _keep(
    demands: NodeDemands,
    nodes: Set[Platform],
    wrong: Set[Platform] | None,
    requirements: Sequence[NodeSelectorRequirement],
) -> RequiredNodes:
    """The requirements for each term that allows a wrong node, and `NO_NODE` for each that allows none of `nodes`.

    `wrong` is None where any other may be there.
    """
    terms, contradicting = list[AddedTerm](), 0
    for each in demands.alternatives:
        added = Requirements()
        if not any(map(each.allows, nodes)):
            contradicting += 1
            added = (NO_NODE,) if each.can_match and NO_NODE not in each.requirements else ()
        elif wrong is None or any(map(each.allows, wrong)):
            added = tuple(item for item in requirements if not is_implied(item, each.requirements))
        if added:
            terms.append(AddedTerm(each.index, added, whole=demands.terms is None))
    is_contradiction = contradicting > 0 or not demands.alternatives
    return RequiredNodes(
        tuple(terms),
        _contradiction(demands, nodes, contradicting) if is_contradiction else "",
        impossible=0 < contradicting == len(demands.alternatives),
    )


def _contradiction(demands: NodeDemands, nodes: Set[Platform], contradicting: int) -> str:
    """Why a pod can run on none of `nodes`, or by `contradicting` of its terms not; empty if neither is so."""
    if not nodes:
        return "no platform is common to all images"
    selector = NodeDemands(demands.selector)
    if not any(may_allow(selector, node) for node in nodes):
        return "nodeSelector allows no node that the images run on"
    if not contradicting:
        return ""
    of = f"{contradicting} of {len(demands.terms or ())} terms of the pod's node affinity"
    return f"{of} allow no node that the images run on"


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
            min(points * 10, _HIGHEST_WEIGHT), NodeSelectorTerm((_one_of(ARCHITECTURE, {architecture}),))
        )
        for architecture, points in sorted(preference.items())
        if points > 0 and architecture in architectures
    )
