"""The platforms of the cluster's nodes, kept current by a watch, for up to 15,000 nodes in little memory.

`placement.nodes` decides which platform a node states.
"""

import asyncio
import random as stdlib_random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Protocol

import msgspec
import structlog

from extender.circuit_breaker import Attempt, Backoff, CircuitBreaker
from extender.cluster.autoscalers import AutoscalerSigns
from extender.cluster.client import ClusterRefused
from extender.cluster.listwatch import Getter, Resource
from extender.errors import ClusterError, ExtenderError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeName
from extender.metrics import gauge
from extender.placement.cluster_nodes import OddNodes, odd_nodes_of
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import NodeLookup, NodePlatforms, platform_of_node
from extender.placement.preferred_nodes import EVERY_NODE, NodeConditions
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
_MISSING_SECONDS = 10.0  # how long a name that was not found is not retried
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=1.0)  # without lookups, since kube-scheduler waits for each

_NODE = msgspec.json.Decoder(Node)
_MOST_ODD = 64  # kinds of odd nodes: labels of a platform and a level have few values
log = structlog.get_logger()


_MISSING = declare_cache("cluster.node_view.missing", key="node name", rows=1024, most_mb=0.5)


class Watch(Protocol):
    """What a view must know of the watch that keeps it."""

    is_live: bool


class WatchedNodes:
    """The platforms of the cluster's nodes. A `Handler` for the watch of `NODES`; only `find` does I/O.

    `platforms` has an entry per node, None for one that states no platform, `odd` the kinds of odd nodes, `kinds` how
    many nodes there are of each kind. `synced` is
    false until all nodes have been listed once. It then stays true, since an old view is better than none.
    """

    def __init__(
        self,
        reader: Getter,
        *,
        level_label: str,
        preferred_nodes: NodeConditions = EVERY_NODE,
        clock: Callable[[], float],
        random: Callable[[], float] = stdlib_random.random,
    ) -> None:
        """`level_label` is the node label that states amd64/v2… or arm64/v9…, empty where there is none.

        `preferred_nodes` tells to which nodes a preference may pull pods.
        `clock` gives monotonic seconds, `random` numbers from 0 up to 1.
        """
        self._reader = reader
        self._level_label = level_label
        self._preferred_nodes = preferred_nodes
        self._clock = clock
        self._missing: Table[NodeName, float] = _MISSING.table()  # each until this time, the earliest first
        self._breaker = CircuitBreaker(_BACKOFF, clock=clock, random=random)
        self._watch: Watch | None = None
        self.synced = False
        self.platforms = NodePlatforms()
        self.kinds = NodeKinds()
        self._odd: dict[NodeName, OddNodes] = {}
        self._odd_kinds = Counter[OddNodes]()
        self.odd: frozenset[OddNodes] = frozenset()
        self.autoscalers = AutoscalerSigns()
        for architecture, child in _NODES.items():
            child.set_function(partial(self.count, architecture))

    def follow(self, watch: Watch) -> None:
        """Takes the watch that keeps this view, by which `is_current` goes."""
        self._watch = watch

    @property
    def is_current(self) -> bool:
        """Whether nodes come into view as they are made; false while nothing watches, or the watch is cut off."""
        return self._watch is not None and self._watch.is_live

    @property
    def missing(self) -> frozenset[NodeName]:
        """The names that were looked up lately and not found."""
        return frozenset(name for name, _ in self._missing.items())

    def count(self, architecture: str) -> int:
        """How many nodes have `architecture`, with `other` as in the metric. O(distinct platforms)."""
        counted = (None, *self.platforms.distinct)
        return sum(self.platforms.count(platform) for platform in counted if _label_of(platform) == architecture)

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
        spared = self._preferred_nodes.spare(node)
        platform = platform_of_node(node, self._level_label)
        self.platforms.put(name, platform, spared=spared)
        self.kinds.put(name, node, platform)
        self._note_odd(name, odd_nodes_of(node, self._level_label))
        listed = (node.status and node.status.images) or ()
        self.platforms.images.put(name, (each for image in listed for each in image.names or ()))
        self._missing.remove(name)
        self.autoscalers.look_at(document)

    def delete(self, name: str) -> None:
        """Removes the node; does nothing if it is not in view."""
        self.platforms.drop(NodeName(name))
        self.platforms.images.drop(NodeName(name))
        self.kinds.drop(NodeName(name))
        self._note_odd(NodeName(name), None)

    def keep_only(self, names: Set[str]) -> None:
        """Removes all nodes but these, which are all that were listed; the view is then synced."""
        for name in [name for name in self.platforms if name not in names]:
            self.delete(name)
        self.synced = True

    def _note_odd(self, name: NodeName, odd: OddNodes | None) -> None:
        before = self._odd.pop(name, None)
        if odd:
            self._odd[name] = odd
            self._odd_kinds[odd] += 1
        if before:
            self._odd_kinds[before] -= 1
        present = frozenset(kind for kind, number in self._odd_kinds.items() if number) if odd != before else self.odd
        if present != self.odd and len(present) <= _MOST_ODD:
            self._odd_kinds = Counter({kind: self._odd_kinds[kind] for kind in present})
            self.odd = present

    async def find(self, names: Iterable[NodeName], wait_seconds: float) -> NodeLookup:
        """Looks up those of `names` that are not in view, once each, and adds the nodes it finds to the view.

        For a node so new that the scheduler's watch has seen it and ours has not. All lookups together take at most
        `wait_seconds`. A name that was not found is not looked up again for ten seconds. After a failed lookup there is
        none for a second. Then one call at a time may look up, until all lookups of a call succeed.
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
            self._breaker.record_success(attempt)  # without effect if one of them has failed
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
        if name in self.platforms:  # the watch was faster, and is more current
            return
        try:
            self.upsert(document)
        except (ExtenderError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            # It can never be in view, so no caller should wait for it.
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
