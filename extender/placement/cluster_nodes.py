"""The nodes of a cluster: their platforms, and those of nodes whose labels do not state them.

kube-scheduler goes by labels, and the scheduler verbs by what kubelets state. Mostly both are the same, but virtual
nodes of some clouds have the beta labels alone, or none: node affinity keeps pods off these, with a warning.
"""

import msgspec

from extender.images.platform import Platform, normalize_platform
from extender.kubernetes.core_v1 import Node
from extender.placement.node_images import NodeImages
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


class ClusterNodes(msgspec.Struct, frozen=True):
    """The platforms of a cluster's nodes, those of nodes whose labels do not state them, and what images nodes list.

    All are empty where no nodes are known. A node that states no platform at all is among `unlabelled` as None.
    """

    platforms: frozenset[Platform] = frozenset()
    unlabelled: frozenset[Platform | None] = frozenset()
    images: NodeImages = NodeImages()


NO_NODES = ClusterNodes()


def is_labelled(node: Node, level_label: str) -> bool:
    """Whether the node's labels state its platform as node affinity names it: system, architecture and any level."""
    labels = (node.metadata and node.metadata.labels) or {}
    platform = platform_of_node(node, level_label)
    if platform is None or (labels.get(OPERATING_SYSTEM), labels.get(ARCHITECTURE)) != (
        platform.os,
        platform.architecture,
    ):
        return False
    documented = (platform.variant, f"{platform.architecture}-{platform.variant}")
    is_baseline = platform == normalize_platform(platform.os, platform.architecture)
    return is_baseline or labels.get(level_label) in documented
