"""The platforms of the nodes that a request is about, in either of its forms, with a cluster and without one."""

import structlog

from extender.cluster.views import WatchedNodes
from extender.errors import ExtenderError
from extender.kubernetes.core_v1 import PodUid
from extender.kubernetes.extender_v1 import ExtenderArgs
from extender.placement.nodes import NodeLookup, NodePlatforms, list_nodes
from extender.placement.policy import Policy

# A node that is missing in a synced view is looked up once, while kube-scheduler waits.
FIND_SECONDS = 0.05
# Three times the largest cluster Kubernetes supports, so that nodes which come and go do not push out those that stay.
SEEN_NODES = 15_000
NO_VIEW = "the request names its nodes and no cluster is watched: set nodeCacheCapable: false, or watch a cluster"
NOT_SYNCED = "the nodes of the cluster are not known yet; to be tried again"


NOT_IN_VIEW = "node {node} is not in view, and the API server could not be asked about it; to be tried again"

log = structlog.get_logger()


class NodesNotKnown(ExtenderError):
    """The nodes of a request cannot be looked up; the message is the answer's error."""


class RequestNodes:
    """Finds the platforms of the nodes that requests are about.

    `view` is None without a cluster. `policy` tells what states a node's level, and to which nodes a preference pulls.
    """

    def __init__(self, view: WatchedNodes | None, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        self._seen = NodePlatforms()  # without a cluster: of the nodes that requests have shown

    def of(self, args: ExtenderArgs) -> NodePlatforms:
        """The platforms among which the request's nodes can be looked up.

        Raises:
            NodesNotKnown: the request only names its nodes, and the view is missing or not synced.
        """
        if args.nodes is not None:
            shown = list_nodes(args.nodes, self._policy.preferred_nodes)
            if self._view is None:
                self._remember(shown)
            return shown
        if self._view is None:
            raise NodesNotKnown(NO_VIEW)
        return self.known()

    @property
    def are_current(self) -> bool:
        """Whether nodes come into view as they are made; false while the watch of them is cut off."""
        return self._view is None or self._view.is_current

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

    async def find_missing(self, args: ExtenderArgs, nodes: NodePlatforms, uid: PodUid) -> NodeLookup:
        """Looks up the request's nodes that should be in view and are not; `uid` is the pod's."""
        if self._view is None or nodes is not self._view.platforms:
            return NodeLookup()
        missing = nodes.missing(args.names)
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
