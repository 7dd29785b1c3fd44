"""The nodes of a scheduler's request, and their platforms.

The platforms come from the request's whole nodes if it has them, else from the cluster's node view. Without a cluster
the nodes of earlier requests are remembered.
"""

from collections.abc import Sequence
from typing import Protocol

import structlog

from extender.errors import ExtenderError
from extender.kubernetes.core_v1 import NodeName, PodUid
from extender.kubernetes.extender_v1 import ExtenderArgs
from extender.placement.cluster_nodes import OddNodes
from extender.placement.nodes import UNSEEN, NodeConditions, NodeLookup, NodePlatforms, list_nodes
from extender.placement.scheduling import look_up

log = structlog.get_logger()

# A node that is missing in a synced view is looked up once, while kube-scheduler waits.
FIND_SECONDS = 0.05
# Three times the largest cluster Kubernetes supports, so that nodes which come and go do not push out those that stay.
SEEN_NODES = 15_000
NO_VIEW = "the request names its nodes and no cluster is watched: set nodeCacheCapable: false, or watch a cluster"
NOT_SYNCED = "the nodes of the cluster are not known yet; to be tried again"


class NodeView(Protocol):
    """The cluster's nodes as a watch keeps them."""

    @property
    def platforms(self) -> NodePlatforms:
        """The platform of each node in view."""

    @property
    def odd(self) -> frozenset[OddNodes]:
        """The kinds of nodes whose labels do not state their platform."""

    @property
    def synced(self) -> bool:
        """Whether all nodes have been listed once."""

    @property
    def is_current(self) -> bool:
        """Whether nodes come into view as they are made; false while the watch of them is cut off."""

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        """Looks up nodes that are not in view, adds those it finds, and returns which are still missing."""


class NodesNotKnown(ExtenderError):
    """The nodes of a request cannot be looked up; the message is the answer's error."""


class RequestNodes:
    """Finds the platforms of the nodes that requests are about.

    `view` is None without a cluster. `level_label` names the node label that states an instruction set level.
    `preferred_nodes` tells to which nodes a preference may pull pods.
    """

    def __init__(self, view: NodeView | None, level_label: str, preferred_nodes: NodeConditions) -> None:
        self._view = view
        self._level_label = level_label
        self._preferred_nodes = preferred_nodes
        self._seen = NodePlatforms()  # without a cluster: of the nodes that requests have shown

    def of(self, args: ExtenderArgs) -> NodePlatforms:
        """The platforms among which the request's nodes can be looked up.

        Raises:
            NodesNotKnown: the request only names its nodes, and the view is missing or not synced.
            InvalidRequest: the request's whole nodes have more than 254 platforms.
        """
        if args.nodes is not None:
            shown = list_nodes(args.nodes, self._level_label, self._preferred_nodes)
            if self._view is None:
                self._remember(shown)
            return shown
        if self._view is None:
            raise NodesNotKnown(NO_VIEW)
        return self.known()

    def known(self) -> NodePlatforms:
        """The platforms of all nodes in view; without a cluster those of the nodes in earlier requests.

        Raises:
            NodesNotKnown: the view is not synced.
        """
        if self._view is None:
            return self._seen
        if not self._view.synced:
            raise NodesNotKnown(NOT_SYNCED)
        return self._view.platforms

    def has_missing(self, args: ExtenderArgs, nodes: NodePlatforms) -> bool:
        """Whether one of the request's nodes should be in view and is not; false while the view is current.

        O(nodes) while it is not.

        Raises:
            InvalidRequest: `NodeNames` has an item that is not a string.
        """
        if self._view is None or nodes is not self._view.platforms or self._view.is_current:
            return False
        return UNSEEN in look_up(args, nodes).codes

    async def find_missing(self, args: ExtenderArgs, nodes: NodePlatforms, uid: PodUid) -> NodeLookup:
        """Looks up the request's nodes that should be in view and are not; `uid` is the pod's."""
        if self._view is None or nodes is not self._view.platforms:
            return NodeLookup()
        missing = [name for name in args.names if name not in nodes]
        if not missing:
            return NodeLookup()
        found = await self._view.find(missing, FIND_SECONDS)
        log.info(
            "node.missed",
            pod=uid,
            nodes=len(missing),
            unknown=len(found.absent) + len(found.unreachable),
            unasked=len(found.unreachable),
        )
        return found

    def _remember(self, shown: NodePlatforms) -> None:
        """Adds the nodes of a request, and evicts those added longest ago. O(its nodes)."""
        self._seen.merge(shown)
        self._seen.drop_first(len(self._seen) - SEEN_NODES)
