"""The nodes of the cluster: the platform and the taints of each, kept current by a watch.

Knows how to hold 15,000 of them in little memory; which platform a node states is decided in `placement.nodes`.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache, partial
from types import MappingProxyType

import msgspec
import structlog

from extender.cluster.listwatch import Getter, Resource
from extender.errors import ClusterError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeName, Wire
from extender.metrics import gauge
from extender.placement.nodes import platform_of_node

NODES = Resource(name="nodes", path="/api/v1/nodes")

_ARCHITECTURES = ("amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64")
_NODES = gauge(
    "multiarch_cluster_nodes",
    "Nodes in view by architecture; `other` are those of an unlisted one, and those that state none.",
    "architecture",
    (*_ARCHITECTURES, "other"),
)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # RFC 1123 subdomain: safe in a path
_LOOKUPS_AT_ONCE = 16
_MISSING_SECONDS = 10.0  # how long a name that was not found is not looked up again
_MISSING_NAMES = 1024
log = structlog.get_logger()


class Taint(Wire, frozen=True):
    """core/v1 Taint; an empty value is a value."""

    key: str = ""
    value: str | None = None
    effect: str | None = None


class NodeSpec(Wire, frozen=True):
    """The part of core/v1 NodeSpec that reports show."""

    taints: list[Taint] | None = None


class TaintedNode(Node, frozen=True):
    """core/v1 Node with its taints."""

    spec: NodeSpec | None = None


_NODE = msgspec.json.Decoder(TaintedNode)


class NodeView:
    """What is known of the cluster's nodes. A `Handler` for the watch of `NODES`; reading it costs no I/O.

    `platforms` has an entry per node, None for one that states no platform. `distinct` are the platforms that occur in
    it. `synced` is false until all nodes have been listed once, and then stays true: an old view beats none.
    """

    def __init__(self, reader: Getter, *, level_label: str, clock: Callable[[], float]) -> None:
        """`level_label` is the node label that states amd64/v2… or arm64/v9…, empty where there is none."""
        self._reader = reader
        self._level_label = level_label
        self._clock = clock
        self._platforms: dict[NodeName, Platform | None] = {}
        self._taints: dict[NodeName, tuple[Taint, ...]] = {}  # of the tainted ones
        self._counts: Counter[Platform | None] = Counter()
        self._missing: dict[NodeName, float] = {}  # until when, the earliest first
        self.synced = False
        self.distinct: frozenset[Platform] = frozenset()
        self.platforms: Mapping[NodeName, Platform | None] = MappingProxyType(self._platforms)
        for architecture, child in _NODES.items():
            child.set_function(partial(self.count, architecture))

    def taints(self, name: NodeName) -> tuple[Taint, ...]:
        """The node's taints; none for a node not in view."""
        return self._taints.get(name, ())

    def count(self, architecture: str) -> int:
        """How many nodes are of `architecture`, with `other` as in the metric. O(distinct platforms)."""
        return sum(count for platform, count in self._counts.items() if _label_of(platform) == architecture)

    def upsert(self, document: msgspec.Raw | bytes) -> None:
        """Takes in a node as it is now.

        Raises:
            msgspec.ValidationError: a field that is read has another type than core/v1 gives it.
            ClusterError: it has no name.
        """
        node = _NODE.decode(document)
        if not node.metadata or not node.metadata.name:
            raise ClusterError("a node without a name")
        name = NodeName(node.metadata.name)
        platform = platform_of_node(node, self._level_label)
        self._recount(platform, 1)  # first, so that a platform never seems to leave while one of its nodes changes
        self._forget(name)
        self._missing.pop(name, None)
        self._platforms[name] = _shared_platform(platform) if platform else None
        if node.spec and node.spec.taints:
            self._taints[name] = _shared_taints(tuple(node.spec.taints))

    def delete(self, name: str) -> None:
        """The node is gone; deleting one not in view changes nothing."""
        self._forget(NodeName(name))

    def keep_only(self, names: Set[str]) -> None:
        """All nodes have been listed, and these are their names: the view is synced."""
        for name in [name for name in self._platforms if name not in names]:
            self._forget(name)
        self.synced = True

    async def find(self, names: Iterable[NodeName], wait_seconds: float) -> tuple[NodeName, ...]:
        """Looks up those of `names` that are not in view, once, and returns the ones that are still missing.

        For the node that is so new that the scheduler's watch has seen it and ours has not. All lookups together take
        at most `wait_seconds`; a name that stays missing is not looked up again for ten seconds.
        """
        absent = [name for name in names if name not in self._platforms]
        unknown = [name for name in absent if self._may_exist(name)][:_LOOKUPS_AT_ONCE]
        if unknown and self.synced:
            try:
                async with asyncio.timeout(wait_seconds):
                    await asyncio.gather(*map(self._look_up, unknown))
            except TimeoutError:
                log.warning("nodes.lookup_timed_out", nodes=len(unknown), wait_seconds=wait_seconds)
            self._remember_missing(unknown)
        return tuple(name for name in absent if name not in self._platforms)

    async def _look_up(self, name: NodeName) -> None:
        try:
            document = await self._reader.get(f"{NODES.path}/{name}")
            if name not in self._platforms:  # else the watch came first, and knows better
                self.upsert(document)
        except (ClusterError, msgspec.DecodeError) as exc:
            log.info("nodes.lookup_failed", node=name, error=str(exc))

    def _may_exist(self, name: NodeName) -> bool:
        return self._missing.get(name, 0.0) <= self._clock() and _NAME.fullmatch(name) is not None

    def _remember_missing(self, names: Iterable[NodeName]) -> None:
        now = self._clock()
        for name in names:
            self._missing.pop(name, None)
            if name not in self._platforms:
                self._missing[name] = now + _MISSING_SECONDS
        for name in list(self._missing):
            if self._missing[name] > now and len(self._missing) <= _MISSING_NAMES:
                break
            del self._missing[name]

    def _forget(self, name: NodeName) -> None:
        if name in self._platforms:
            self._recount(self._platforms.pop(name), -1)
            self._taints.pop(name, None)

    def _recount(self, platform: Platform | None, change: int) -> None:
        self._counts[platform] += change
        if not self._counts[platform]:
            del self._counts[platform]
        if (platform in self._counts) != (platform in self.distinct):
            self.distinct = frozenset(filter(None, self._counts))


def _label_of(platform: Platform | None) -> str:
    return platform.architecture if platform and platform.architecture in _ARCHITECTURES else "other"


@lru_cache(maxsize=256)
def _shared_platform(platform: Platform) -> Platform:
    """The same object for equal platforms: a cluster has two or three."""
    return platform


@lru_cache(maxsize=1024)
def _shared_taints(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """The same object for equal taints: the nodes of a pool share them."""
    return taints
