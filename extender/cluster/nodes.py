"""The nodes of the cluster: the platform of each, kept current by a watch.

Knows how to hold 15,000 of them in little memory; which platform a node states is decided in `placement.nodes`.
"""

import asyncio
import random as stdlib_random
import re
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial

import msgspec
import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.cluster.client import ClusterRefused
from extender.cluster.listwatch import Getter, Resource
from extender.errors import ClusterError, ExtenderError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeName
from extender.metrics import gauge
from extender.placement.nodes import NodeLookup, NodePlatforms, platform_of_node
from extender.tables import Table, declare_cache

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
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=1.0)  # without lookups: kube-scheduler waits for each

_NODE = msgspec.json.Decoder(Node)
log = structlog.get_logger()


_MISSING = declare_cache(
    "cluster.nodes.missing",
    key="node name",
    lifetime=f"{_MISSING_SECONDS:g} s",
    bound=1024,
    invalidated_by="the node's arrival",
)


class WatchedNodes:
    """What is known of the cluster's nodes. A `Handler` for the watch of `NODES`; reading it costs no I/O.

    `platforms` has an entry per node, None for one that states no platform. `synced` is false until all nodes have been
    listed once, and then stays true: an old view beats none.
    """

    def __init__(
        self,
        reader: Getter,
        *,
        level_label: str,
        clock: Callable[[], float],
        random: Callable[[], float] = stdlib_random.random,
    ) -> None:
        """`level_label` is the node label that states amd64/v2… or arm64/v9…, empty where there is none.

        `clock` gives monotonic seconds, `random` numbers from 0 up to 1.
        """
        self._reader = reader
        self._level_label = level_label
        self._clock = clock
        self._missing: Table[NodeName, float] = _MISSING.table()  # until when, the earliest first
        self._breaker = CircuitBreaker(_BACKOFF, clock=clock, random=random)
        self.synced = False
        self.platforms = NodePlatforms()
        for architecture, child in _NODES.items():
            child.set_function(partial(self.count, architecture))

    @property
    def missing(self) -> frozenset[NodeName]:
        """The names that no node had when they were looked up lately."""
        return frozenset(name for name, _ in self._missing.items())

    def count(self, architecture: str) -> int:
        """How many nodes are of `architecture`, with `other` as in the metric. O(distinct platforms)."""
        counted = (None, *self.platforms.distinct)
        return sum(self.platforms.count(platform) for platform in counted if _label_of(platform) == architecture)

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
        self.platforms.put(name, platform_of_node(node, self._level_label))
        self._missing.remove(name)

    def delete(self, name: str) -> None:
        """The node is gone; deleting one not in view changes nothing."""
        self.platforms.drop(NodeName(name))

    def keep_only(self, names: Set[str]) -> None:
        """All nodes have been listed, and these are their names: the view is synced."""
        for name in [name for name in self.platforms if name not in names]:
            self.platforms.drop(name)
        self.synced = True

    async def find(self, names: Iterable[NodeName], wait_seconds: float) -> NodeLookup:
        """Looks up those of `names` that are not in view, once; what it finds is in view from then on.

        For the node that is so new that the scheduler's watch has seen it and ours has not. All lookups together take
        at most `wait_seconds`. A name that no node has is not looked up again for ten seconds. After a failed lookup
        none is made for a second; then one call at a time makes them, until all those of a call succeed.
        """
        absent = [name for name in names if name not in self.platforms]
        if self.synced:
            await self._look_up_all([name for name in absent if self._may_exist(name)][:_LOOKUPS_AT_ONCE], wait_seconds)
        still = [name for name in absent if name not in self.platforms]
        return NodeLookup(
            absent=tuple(name for name in still if not self._may_exist(name)),
            unreachable=tuple(name for name in still if self._may_exist(name)),
        )

    async def _look_up_all(self, names: Sequence[NodeName], wait_seconds: float) -> None:
        attempt = self._breaker.admit() if names else None
        if attempt is None:
            return
        try:
            async with asyncio.timeout(wait_seconds):
                await asyncio.gather(*(self._look_up(name, attempt) for name in names))
        except TimeoutError:
            self._breaker.record_failure(attempt)
            log.warning("nodes.lookup_timed_out", nodes=len(names), wait_seconds=wait_seconds)
        else:
            self._breaker.record_success(attempt)  # no news where one of them has failed meanwhile
        finally:
            self._breaker.release(attempt)

    async def _look_up(self, name: NodeName, attempt: Attempt) -> None:
        try:
            document = await self._reader.get(f"{NODES.path}/{name}")
        except ClusterError as exc:
            if isinstance(exc, ClusterRefused) and exc.status == 404:
                self._remember_missing(name)
            else:
                self._breaker.record_failure(attempt)
                log.info("nodes.lookup_failed", node=name, error=str(exc))
            return
        if name in self.platforms:  # the watch came first, and knows better
            return
        try:
            self.upsert(document)
        except (ExtenderError, msgspec.DecodeError) as exc:  # it never will be in view, so nobody is to wait for it
            self._remember_missing(name)
            log.info("nodes.lookup_failed", node=name, error=str(exc))

    def _may_exist(self, name: NodeName) -> bool:
        return (self._missing.peek(name) or 0.0) <= self._clock() and _NAME.fullmatch(name) is not None

    def _remember_missing(self, name: NodeName) -> None:
        now = self._clock()
        self._missing.put(name, now + _MISSING_SECONDS)
        self._missing.remove_first_while(lambda _, until: until <= now)


def _label_of(platform: Platform | None) -> str:
    return platform.architecture if platform and platform.architecture in _ARCHITECTURES else "other"
