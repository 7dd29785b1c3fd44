"""The platforms of the nodes that came whole with requests: without a cluster, those are the cluster.

A preempt request names its candidates without showing them; this remembers what filter requests showed.
"""

from extender.placement.nodes import NodePlatforms

# Three times the largest cluster Kubernetes supports, so that nodes which come and go do not push out those that stay.
ROWS = 15_000


class SeenNodes:
    """The `platforms` of every node shown so far; the longest unseen are forgotten first."""

    def __init__(self) -> None:
        self.platforms = NodePlatforms()

    def remember(self, nodes: NodePlatforms) -> None:
        """Take in the nodes of a request. O(its nodes)."""
        self.platforms.merge(nodes)
        self.platforms.drop_first(len(self.platforms) - ROWS)
