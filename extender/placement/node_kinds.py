"""The kinds of nodes that a cluster has, each with its number: nodes that no pod's constraints and images tell apart.

The nodes of a pool differ in names only, so a cluster of thousands has a few kinds. Depends on neither pods nor images.
"""

from collections.abc import Mapping

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeMeta, NodeName, Taint
from extender.kubernetes.reported_v1 import ReportedNode, ReportedNodeSpec
from extender.placement.node_match import hard_taints

HOST_NAME = "kubernetes.io/hostname"
_OF_CONDITIONS = "node.kubernetes.io/"  # taints by which a node is not ready or cordoned: they come and go
_MOST_CHARACTERS = 8192  # of one kind's labels and taints
_MOST_KINDS = 256


class NodeKind(msgspec.Struct, frozen=True):
    """What nodes of one kind have in common: all labels but the name, and the taints that keep pods away for good."""

    platform: Platform | None
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]

    @property
    def node(self) -> ReportedNode:
        """One such node, without a name."""
        return ReportedNode(metadata=NodeMeta(labels=dict(self.labels)), spec=ReportedNodeSpec(taints=self.taints))


class NodeKinds:
    """Counts nodes by kind. A cluster with too many kinds has none, as where each node has labels alone."""

    def __init__(self) -> None:
        self._by_name: dict[NodeName, NodeKind | None] = {}
        self._numbers: dict[NodeKind, int] = {}
        self._uncounted = 0

    @property
    def numbers(self) -> Mapping[NodeKind, int] | None:
        """How many nodes there are of each kind; None if some could not be counted."""
        return None if self._uncounted else self._numbers

    def put(self, name: NodeName, node: Node, platform: Platform | None) -> None:
        """Adds or replaces the node of this name."""
        self.drop(name)
        kind: NodeKind | None = _kind_of(node, name, platform)
        if kind is None or (kind not in self._numbers and len(self._numbers) >= _MOST_KINDS):
            self._by_name[name] = None
            self._uncounted += 1
            return
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        self._by_name[name] = kind

    def drop(self, name: NodeName) -> None:
        """Removes the node; does nothing if it was never put."""
        if name not in self._by_name:
            return
        kind = self._by_name.pop(name)
        if kind is None:
            self._uncounted -= 1
            return
        self._numbers[kind] -= 1
        if not self._numbers[kind]:
            del self._numbers[kind]


def _kind_of(node: Node, name: NodeName, platform: Platform | None) -> NodeKind | None:
    """The node's kind; None if its labels take too much."""
    labels = node.labels
    kept = tuple(sorted((key, value) for key, value in labels.items() if key != HOST_NAME and value != name))
    taints = tuple(taint for taint in hard_taints(node) if not taint.key.startswith(_OF_CONDITIONS))
    texts = [*map("".join, kept), *(f"{taint.key}{taint.value}" for taint in taints)]
    return NodeKind(platform, kept, taints) if sum(map(len, texts)) <= _MOST_CHARACTERS else None
