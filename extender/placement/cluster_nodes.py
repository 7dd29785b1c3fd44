"""The nodes of a cluster as the words in a pod tell them apart: by platform, and by what their labels say of it.

kube-scheduler goes by labels, and the scheduler verbs by what kubelets state. Mostly both are the same. Nodes for which
they are not are odd: virtual nodes of some clouds have the beta labels alone, or none.
"""

from collections.abc import Mapping

import msgspec

from extender.images.platform import Platform, normalize_platform
from extender.kubernetes.core_v1 import Node, NodeSelectorRequirement
from extender.placement.node_images import NodeImages
from extender.placement.node_match import is_met
from extender.placement.nodes import platform_of_node

ARCHITECTURE = "kubernetes.io/arch"
OPERATING_SYSTEM = "kubernetes.io/os"
# The node controller keeps the beta labels equal to these (KEP-793).
LABELS = {
    ARCHITECTURE: ARCHITECTURE,
    OPERATING_SYSTEM: OPERATING_SYSTEM,
    "beta.kubernetes.io/arch": ARCHITECTURE,
    "beta.kubernetes.io/os": OPERATING_SYSTEM,
}
"""The labels that tell a node's platform, and the present name of each."""


class OddNodes(msgspec.Struct, frozen=True):
    """Nodes whose labels do not state their platform: what it is, None if they state none at all, and these labels."""

    platform: Platform | None
    labels: tuple[tuple[str, str], ...] = ()
    level_label: str = ""

    def meets(self, requirement: NodeSelectorRequirement) -> bool:
        """Whether the nodes meet the requirement, if it is about a platform; any other counts as met."""
        if requirement.key not in LABELS and requirement.key != (self.level_label or None):
            return True
        return is_met(requirement, dict(self.labels).get(requirement.key))


class ClusterNodes(msgspec.Struct, frozen=True):
    """The platforms of a cluster's nodes, the odd ones among these, and what images they list.

    All are empty where no nodes are known.
    """

    platforms: frozenset[Platform] = frozenset()
    odd: frozenset[OddNodes] = frozenset()
    images: NodeImages = NodeImages()


NO_NODES = ClusterNodes()


def odd_nodes_of(node: Node, level_label: str) -> OddNodes | None:
    """The kind of odd nodes to which the node belongs; None if its labels state its platform as words name it."""
    labels = (node.metadata and node.metadata.labels) or {}
    platform = platform_of_node(node, level_label)
    if platform and _states(platform, labels, level_label):
        return None
    keys = (*LABELS, level_label) if level_label else LABELS
    return OddNodes(platform, tuple((key, labels[key]) for key in keys if key in labels), level_label)


def _states(platform: Platform, labels: Mapping[str, str], level_label: str) -> bool:
    if (labels.get(OPERATING_SYSTEM), labels.get(ARCHITECTURE)) != (platform.os, platform.architecture):
        return False
    documented = (platform.variant, f"{platform.architecture}-{platform.variant}")
    is_baseline = platform == normalize_platform(platform.os, platform.architecture)
    return is_baseline or labels.get(level_label) in documented
