"""The platform of a node, and the platforms of thousands of nodes by name.

kube-scheduler goes by labels, and the scheduler verbs by what kubelets state. Mostly both are the same, but virtual
nodes of some clouds have the beta labels alone, or none: node affinity keeps pods off these. Depends on neither pods
nor images.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice

import msgspec

from extender.images.platform import Platform, normalize_platform
from extender.kubernetes.core_v1 import Node, NodeName, NodeSystemInfo
from extender.placement.node_images import NodeImages

ARCHITECTURE = "kubernetes.io/arch"
OPERATING_SYSTEM = "kubernetes.io/os"
PREFIX = "multiarch-extender.io/"
"""The prefix of the key of every annotation and label of ours."""
_BETA_ARCHITECTURE, _BETA_SYSTEM = "beta.kubernetes.io/arch", "beta.kubernetes.io/os"
LABELS = {
    ARCHITECTURE: ARCHITECTURE,
    OPERATING_SYSTEM: OPERATING_SYSTEM,
    _BETA_ARCHITECTURE: ARCHITECTURE,
    _BETA_SYSTEM: OPERATING_SYSTEM,
}
"""The labels of a node's platform, and the present name of each: the node controller keeps them equal (KEP-793)."""

USUAL = (Platform("linux", "amd64"), Platform("linux", "arm64"))
"""The platforms of nodes that any cluster may get."""


class NodePlatforms(dict[NodeName, Platform | None]):
    """The platform of each node by name, None for a node that states none, in the order in which they were put.

    Only `put` and `drop` change it. `distinct` are the platforms of all nodes. `images` is what the nodes list, nothing
    where that is not watched.
    """

    def __init__(self, platforms: Mapping[NodeName, Platform | None] | None = None) -> None:
        super().__init__()
        self._names: dict[Platform | None, set[NodeName]] = {}
        self.distinct: frozenset[Platform] = frozenset()
        self.images = NodeImages()
        for name, platform in (platforms or {}).items():
            self.put(name, platform)

    def count(self, platform: Platform | None) -> int:
        """The number of nodes with this platform."""
        return len(self._names.get(platform, ()))

    def select(self, names: Sequence[NodeName], platforms: Set[Platform | None]) -> list[NodeName]:
        """Those of the names whose nodes have one of the platforms, in order. O(names)."""
        groups = [self._names[platform] for platform in platforms if platform in self._names]
        if len(groups) == 1:  # as usual, and twice as fast
            [group] = groups
            return [name for name in names if name in group]
        return [name for name in names if name in self and self[name] in platforms] if groups else []

    def missing(self, names: Iterable[NodeName]) -> list[NodeName]:
        """Those of the names that are not in view."""
        return [name for name in names if name not in self]

    def put(self, name: NodeName, platform: Platform | None) -> None:
        """Adds the node or replaces its platform; the node becomes the last in order."""
        self.drop(name)
        self[name] = platform
        self._names.setdefault(platform, set()).add(name)
        if platform and platform not in self.distinct:
            self.distinct |= {platform}

    def merge(self, others: "NodePlatforms") -> None:
        """Puts all nodes of `others`."""
        for name, platform in others.items():
            self.put(name, platform)

    def drop_first(self, number: int) -> None:
        """Drops the `number` nodes that were put longest ago; none if `number` is negative."""
        for name in list(islice(self, max(number, 0))):
            self.drop(name)

    def drop(self, name: NodeName) -> None:
        """Removes the node; does nothing if it is not in view."""
        if name not in self:
            return
        platform = self.pop(name)
        self._names[platform].remove(name)
        if not self._names[platform]:
            del self._names[platform]
            self.distinct -= {platform}


class ClusterNodes(msgspec.Struct, frozen=True):
    """The platforms of a cluster's nodes, and what images nodes list; both are empty where no nodes are known."""

    platforms: frozenset[Platform] = frozenset()
    images: NodeImages = NodeImages()


NO_NODES = ClusterNodes()
USUAL_NODES = ClusterNodes(frozenset(USUAL))
"""Those of a cluster of amd64 and arm64, for manifests of which no cluster is known."""


def list_nodes(nodes: Sequence[Node]) -> NodePlatforms:
    """The platforms of the whole nodes in a request."""
    return NodePlatforms({name_of_node(node): platform_of_node(node) for node in nodes})


def name_of_node(node: Node) -> NodeName:
    """The node's name, empty if it has none."""
    return NodeName((node.metadata and node.metadata.name) or "")


def platform_of_node(node: Node) -> Platform | None:
    """The node's platform; None if it states no operating system or no architecture.

    For each of the two, the kubelet's `status.nodeInfo` comes before the labels, and the labels before the beta labels.
    """
    labels = (node.metadata and node.metadata.labels) or {}
    info = (node.status and node.status.node_info) or NodeSystemInfo()
    os = info.operating_system or labels.get(OPERATING_SYSTEM) or labels.get(_BETA_SYSTEM)
    architecture = info.architecture or labels.get(ARCHITECTURE) or labels.get(_BETA_ARCHITECTURE)
    return normalize_platform(os, architecture) if os and architecture else None
