"""The platforms of the nodes that came whole with requests: without a cluster, those are the cluster.

A preempt request names its candidates without showing them; this remembers what filter requests showed.
"""

from collections.abc import Mapping, Set

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import ListedNodes

# Three times the largest cluster Kubernetes supports, so that nodes which come and go do not push out those that stay.
ROWS = 15_000


class SeenNodes:
    """`NodePlatforms` of every node shown so far; the longest unseen are forgotten first."""

    def __init__(self) -> None:
        self._platforms: dict[NodeName, Platform | None] = {}

    @property
    def platforms(self) -> Mapping[NodeName, Platform | None]:
        """By name."""
        return self._platforms

    @property
    def distinct(self) -> Set[Platform]:
        """All the platforms that were shown. O(nodes)."""
        return frozenset(platform for platform in self._platforms.values() if platform)

    def remember(self, nodes: ListedNodes) -> None:
        """Take in the nodes of a request. O(its nodes)."""
        for name, platform in nodes.platforms.items():
            self._platforms.pop(name, None)
            self._platforms[name] = platform
        while len(self._platforms) > ROWS:
            del self._platforms[next(iter(self._platforms))]
