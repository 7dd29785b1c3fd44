"""The platform of a node, and the platforms of thousands of nodes by name.

kube-scheduler goes by labels, and the scheduler verbs by what kubelets state. Mostly both are the same, but virtual
nodes of some clouds have the beta labels alone, or none: node affinity keeps pods off these. Depends on neither pods
nor images.
"""

from collections.abc import Iterator, Mapping, Sequence
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


class NodePlatforms(Mapping[NodeName, Platform | None]):
    """The platform of each node by name, in the order in which they were put, as a number.

    `numbers` has the number of each node's platform, and `platforms` the platform of each number, None where nodes
    state none: what is decided about thousands of names is a table of a few rows. Only `put` and `drop` change both.
    `distinct` are the platforms of all nodes. `images` is what the nodes list, nothing where that is not watched.
    """

    def __init__(self, platforms: Mapping[NodeName, Platform | None] | None = None) -> None:
        self.numbers: dict[NodeName, int] = {}
        self.platforms: tuple[Platform | None, ...] = ()
        self.distinct: frozenset[Platform] = frozenset()
        self.images = NodeImages()
        self._of_platform: dict[Platform | None, int] = {}
        self._free: list[int] = []  # numbers of platforms that no node has any more, which stand for None
        self._held: list[int] = []  # how many nodes have each number
        for name, platform in (platforms or {}).items():
            self.put(name, platform)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self.numbers)

    def __getitem__(self, name: NodeName) -> Platform | None:
        return self.platforms[self.numbers[name]]

    def held(self) -> Mapping[Platform | None, int]:
        """How many nodes there are of each platform."""
        return {platform: self._held[number] for platform, number in self._of_platform.items()}

    def put(self, name: NodeName, platform: Platform | None) -> None:
        """Adds the node or replaces its platform; the node becomes the last in order."""
        self.drop(name)
        number = self._of_platform.get(platform)
        if number is None:
            number = self._add(platform)
        self.numbers[name] = number
        self._held[number] += 1

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
        number = self.numbers.pop(name, None)
        if number is None:
            return
        self._held[number] -= 1
        if not self._held[number]:
            del self._of_platform[self.platforms[number]]
            self._free.append(number)
            self._name(number, None)

    def _add(self, platform: Platform | None) -> int:
        """A number for the platform."""
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._held)
            self._held.append(0)
            self.platforms += (None,)
        self._of_platform[platform] = number
        self._name(number, platform)
        return number

    def _name(self, number: int, platform: Platform | None) -> None:
        """Gives the number its meaning. O(numbers), as rarely as a cluster gets or loses its first node of a kind."""
        self.platforms = (*self.platforms[:number], platform, *self.platforms[number + 1 :])
        self.distinct = frozenset(filter(None, self.platforms))


class ClusterNodes(msgspec.Struct, frozen=True):
    """The platforms of a cluster's nodes, and what images nodes list; both are empty where no nodes are known."""

    platforms: frozenset[Platform] = frozenset()
    images: NodeImages = NodeImages()


NO_NODES = ClusterNodes()
USUAL_NODES = ClusterNodes(frozenset(USUAL))
"""Those of a cluster of amd64 and arm64, for manifests of which no cluster is known."""


def platforms_of(names: Sequence[NodeName], nodes: Sequence[Node]) -> NodePlatforms:
    """The platforms of nodes that have these names, in the same order."""
    return NodePlatforms(dict(zip(names, map(platform_of_node, nodes), strict=True)))


def platform_of_node(node: Node) -> Platform | None:
    """The node's platform; None if it states no operating system or no architecture.

    For each of the two, the kubelet's `status.nodeInfo` comes before the labels, and the labels before the beta labels.
    """
    labels = node.labels
    info = (node.status and node.status.node_info) or NodeSystemInfo()
    os = info.operating_system or labels.get(OPERATING_SYSTEM) or labels.get(_BETA_SYSTEM)
    architecture = info.architecture or labels.get(ARCHITECTURE) or labels.get(_BETA_ARCHITECTURE)
    return normalize_platform(os, architecture) if os and architecture else None
