"""Pods that name the nodes to run on: whether their images run there.

Nodes are named by the label `kubernetes.io/hostname`, whose value is a node's name nearly everywhere, or by the field
`metadata.name`. Nobody else takes such a pod, so it waits or crashes where the node has another platform.
"""

from collections.abc import Iterator, Mapping, Sequence

from extender.images.platform import Compatibility, Platform
from extender.kubernetes.core_v1 import Node, NodeName, NodeSelectorTerm
from extender.placement.facts import Fit, ImageFact, fit
from extender.placement.node_kinds import HOST_NAME
from extender.placement.node_match import NodeDemands
from extender.placement.nodes import name_of_node
from extender.placement.reasons import NAME_CHARACTERS, shorten

_MOST_NAMES = 16
_NAME = "metadata.name"


def wrong_nodes(
    demands: NodeDemands,
    facts: Sequence[ImageFact],
    compatibility: Compatibility,
    platforms: Mapping[NodeName, Platform | None],
) -> dict[NodeName, Platform]:
    """The nodes that the pod names, if its images are known to run on none of them; empty otherwise.

    `platforms` are those of the nodes in view. It is empty where the pod may go to any other node, or the platform of
    one of them is not known.
    """
    found: dict[NodeName, Platform] = {}
    for name in _names(demands):
        platform = platforms.get(name)
        if platform is None or fit(facts, platform, compatibility) is not Fit.NO:
            return {}
        found[name] = platform
    return found


def shown_nodes(wrong: Mapping[NodeName, Platform]) -> str:
    """The first of the nodes and its platform, and how many more there are."""
    name, platform = next(iter(wrong.items()))
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"node {shorten(name, NAME_CHARACTERS)}{more}, which is {platform}"


def names_of_node(node: Node) -> Sequence[NodeName]:
    """The names by which pods may ask for the node: its own, and the label's."""
    labels = (node.metadata and node.metadata.labels) or {}
    return tuple(NodeName(name) for name in (name_of_node(node), labels.get(HOST_NAME)) if name)


def _names(demands: NodeDemands) -> Sequence[NodeName]:
    """The nodes that the demands name, if they allow no others; empty where they are too many."""
    if name := demands.selector.get(HOST_NAME):
        return (NodeName(name),)
    terms = [term for term in demands.terms or () if term.match_expressions or term.match_fields]
    named = [list(_named(term)) for term in terms]
    names = dict.fromkeys(name for each in named for name in each)
    return tuple(names) if all(named) and len(names) <= _MOST_NAMES else ()


def _named(term: NodeSelectorTerm) -> Iterator[NodeName]:
    for key, requirements in ((HOST_NAME, term.match_expressions), (_NAME, term.match_fields)):
        for each in requirements or ():
            if each.key == key and each.operator == "In":
                yield from map(NodeName, each.values or ())
