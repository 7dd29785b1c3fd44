"""What watches show of the cluster: platforms of nodes, annotations of namespaces, and pods that wait for a node.

Up to 15,000 nodes take little memory; `placement.nodes` decides which platform a node states. Of namespaces only our
annotations are kept, to which `placement.annotations` gives a meaning, and of pending pods nothing: they are watched
for a few seconds after each call of `watch_briefly`, and a callback receives them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import partial
from types import MappingProxyType

import msgspec
import structlog

from extender.cluster.client import METADATA
from extender.cluster.listwatch import ListWatch, Reader, Resource
from extender.errors import ClusterError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import ListingNode, NodeName, Pod
from extender.kubernetes.meta_v1 import PartialObjectMetadata
from extender.metrics import gauge
from extender.placement.annotations import AUTHORS_KEYS
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import NO_NODES, ClusterNodes, NodePlatforms, platform_of_node

NODES = Resource(name="nodes", path="/api/v1/nodes")

_ARCHITECTURES = ("amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64")
_NODES = gauge(
    "multiarch_cluster_nodes",
    "Nodes in view by architecture.",
    "architecture",
    (*_ARCHITECTURES, "other"),
)

_NODE = msgspec.json.Decoder(ListingNode)


class WatchedNodes:
    """The platforms of the cluster's nodes, kept by `watch`, whose `Handler` it is.

    `platforms` has the nodes' platforms, `kinds` how many nodes there are of each kind. `synced` is false until all
    nodes have been listed once. It then stays true, since an old view is better than none.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self.watch = ListWatch(reader, NODES, self, clock=clock, random=random)
        self.synced = False
        self.platforms = NodePlatforms()
        self.kinds = NodeKinds()
        for architecture, child in _NODES.items():
            child.set_function(partial(self.count, architecture))

    def known(self) -> ClusterNodes:
        """What the nodes are; none until all nodes have been listed once."""
        return ClusterNodes(self.platforms.distinct, self.platforms.images) if self.synced else NO_NODES

    def count(self, architecture: str) -> int:
        """How many nodes have `architecture`, with `other` as in the metric. O(distinct platforms)."""
        held = self.platforms.held()
        return sum(number for platform, number in held.items() if _label_of(platform) == architecture)

    def upsert(self, document: msgspec.Raw | bytes) -> None:
        """Adds or replaces a node.

        Raises:
            msgspec.ValidationError: a field that is read has another type than in core/v1.
            ClusterError: the node has no name.
        """
        node = _NODE.decode(document)
        if not node.metadata or not node.metadata.name:
            raise ClusterError("a node without a name")
        name = NodeName(node.metadata.name)
        platform = platform_of_node(node)
        self.platforms.put(name, platform)
        self.kinds.put(name, node, platform)
        self.platforms.images.put(name, node.status.image_names if node.status else ())

    def delete(self, name: str) -> None:
        """Removes the node; does nothing if it is not in view."""
        self.platforms.drop(NodeName(name))
        self.platforms.images.drop(NodeName(name))
        self.kinds.drop(NodeName(name))

    def keep_only(self, names: Set[str]) -> None:
        """Removes all nodes but these, which are all that were listed; the view is then synced."""
        for name in [name for name in self.platforms if name not in names]:
            self.delete(name)
        self.synced = True


def _label_of(platform: Platform | None) -> str:
    return platform.architecture if platform and platform.architecture in _ARCHITECTURES else "other"


NAMESPACES = Resource(
    name="namespaces",
    path="/api/v1/namespaces",
    list_accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    watch_accept=METADATA,
)


_NAMESPACE = msgspec.json.Decoder(PartialObjectMetadata)
# Of a value: no allowed one has more, and sentences about others quote less. A namespace may have 256 KiB.
_MOST_CHARACTERS = 128
_NONE: Mapping[str, str] = MappingProxyType({})


class NamespaceView:
    """The annotations of namespaces that have a meaning there. A `Handler` for the watch of `NAMESPACES`.

    Until the view is synced, a namespace not seen yet has none: annotations only override defaults, so no request waits
    for them.
    """

    def __init__(self) -> None:
        self._annotations: dict[str, Mapping[str, str]] = {}  # of the namespaces that have any
        self.synced = False

    def annotations_of(self, namespace: str) -> Mapping[str, str]:
        """The namespace's annotations for us, by full key, cut after 128 characters; empty if it has none. O(1)."""
        return self._annotations.get(namespace, _NONE)

    def upsert(self, document: msgspec.Raw) -> None:
        """Adds or replaces a namespace's annotations.

        Raises:
            msgspec.ValidationError: a field that is read has another type than in meta/v1.
            ClusterError: the namespace has no name.
        """
        metadata = _NAMESPACE.decode(document).metadata
        if not metadata.name:
            raise ClusterError("a namespace without a name")
        found = metadata.annotations or {}
        ours = {key: found[key][:_MOST_CHARACTERS] for key in sorted(AUTHORS_KEYS & found.keys())}
        if ours:
            self._annotations[metadata.name] = ours
        else:
            self._annotations.pop(metadata.name, None)

    def delete(self, name: str) -> None:
        """Removes the namespace's annotations."""
        self._annotations.pop(name, None)

    def keep_only(self, names: Set[str]) -> None:
        """Removes all namespaces but these, which are all that were listed; the view is then synced."""
        self._annotations = {name: kept for name, kept in self._annotations.items() if name in names}
        self.synced = True


PODS = "/api/v1/pods"
# The API server can select pods by both fields (pkg/apis/core/v1/conversion.go). A pod that is bound leaves the
# selection, which the watch reports as a deletion.
PENDING = "spec.nodeName=,status.phase=Pending"
PENDING_PODS = Resource(name="pods", path=PODS, query={"fieldSelector": PENDING}, is_kept=False)
LINGER_SECONDS = 5.0

_POD = msgspec.json.Decoder(Pod)
log = structlog.get_logger()


class PendingPods:
    """Watches pods that wait for a node, from a call of `watch_briefly` until `linger_seconds` after the last call.

    A watch costs the API server two events for every pod in the cluster, so it is open only while it is useful: when
    one image is unknown, those of pods that wait behind it may be unknown too.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        """`clock`, `random` and `sleep` are those of the ListWatch."""
        self._on_pending_pod: Callable[[Pod], None] = lambda _: None
        self._watch = ListWatch(reader, PENDING_PODS, self, clock=clock, random=random, sleep=sleep)
        self._linger_seconds = linger_seconds
        self._wanted = asyncio.Event()

    def watch_briefly(self) -> None:
        """Starts a listing of pending pods and watches for a few seconds; returns at once."""
        self._wanted.set()

    async def run(self, on_pending_pod: Callable[[Pod], None]) -> None:
        """Calls `on_pending_pod` for pending pods and their changes while a watch is open. Runs until cancelled.

        `on_pending_pod` must be quick and must not block, since the watch waits for it. Continues after ClusterErrors.
        """
        self._on_pending_pod = on_pending_pod
        while True:
            await self._wanted.wait()
            watching = asyncio.create_task(self._watch.run())
            try:
                while self._wanted.is_set() and not watching.done():
                    self._wanted.clear()
                    await asyncio.wait([watching], timeout=self._linger_seconds)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()  # any exception is a defect of ours, and ends this task too

    def upsert(self, document: msgspec.Raw) -> None:
        """Announces the pod. Raises msgspec.ValidationError if it is none."""
        self._on_pending_pod(_POD.decode(document))

    def delete(self, _key: str) -> None:
        """Nothing is kept of a pod."""

    def keep_only(self, _keys: Set[str]) -> None:
        """Nothing is kept of pods."""
