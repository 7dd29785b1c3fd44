"""The platform of a node, and the platforms of the nodes a scheduler asks about.

Knows nothing of pods and images.
"""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Protocol

import msgspec

from extender.images.platform import Platform, normalize_platform
from extender.kubernetes.core_v1 import Node, NodeName, NodeSystemInfo

_OS_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")
_ARCHITECTURE_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
_LEVEL = re.compile(r"(?:(?P<architecture>.+)[/._-])?(?P<variant>[vV]\d+(?:\.\d+)?)", re.ASCII)


class NodePlatforms(Protocol):
    """The platform of each node by name, None for one that states none; and all the platforms that occur in there."""

    @property
    def platforms(self) -> Mapping[NodeName, Platform | None]:
        """By name; a node that is not in view has no entry."""

    @property
    def distinct(self) -> Set[Platform]:
        """The values of `platforms`, without None."""


class ListedNodes(msgspec.Struct, frozen=True):
    """`NodePlatforms` that never change."""

    platforms: Mapping[NodeName, Platform | None]
    distinct: Set[Platform]


def list_nodes(nodes: Sequence[Node], level_label: str) -> ListedNodes:
    """The platforms of the nodes that came whole with a request; `level_label` as in `platform_of_node`."""
    platforms = {name_of_node(node): platform_of_node(node, level_label) for node in nodes}
    return ListedNodes(platforms, frozenset(platform for platform in platforms.values() if platform))


def name_of_node(node: Node) -> NodeName:
    """The node's name, empty if it has none."""
    return NodeName((node.metadata and node.metadata.name) or "")


def platform_of_node(node: Node, level_label: str) -> Platform | None:
    """What the node can execute, or None if it does not say.

    The kubelet's word (`status.nodeInfo`) counts before the labels, and those before the beta labels, for operating
    system and architecture each. `level_label` names the label that states an instruction set level, `v3` or `amd64-v3`
    (a label value cannot hold a slash, but `amd64/v3` is understood too); it is ignored if it speaks of another
    architecture, and there is none if it is empty.
    """
    labels = (node.metadata and node.metadata.labels) or {}
    info = (node.status and node.status.node_info) or NodeSystemInfo()
    os = info.operating_system or _first(labels, _OS_LABELS)
    architecture = info.architecture or _first(labels, _ARCHITECTURE_LABELS)
    if not os or not architecture:
        return None
    platform = normalize_platform(os, architecture)
    level = _LEVEL.fullmatch(labels.get(level_label, "")) if level_label else None
    return _with_level(platform, level["architecture"], level["variant"]) if level else platform


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _with_level(platform: Platform, architecture: str | None, variant: str) -> Platform:
    stated = normalize_platform(platform.os, architecture or platform.architecture, variant)
    return stated if stated.architecture == platform.architecture else platform
