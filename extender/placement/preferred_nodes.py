"""The nodes to which a preference may pull pods: not those whose devices are precious, unless the operator says so."""

import functools
from collections.abc import Mapping, Sequence

import msgspec

from extender.kubernetes.core_v1 import Node


class NodeConditions(msgspec.Struct, frozen=True, dict=True):
    """What a node has and lacks to which a preference may pull pods.

    It has all of `labels`, no resource of `without_resources`, and no taint with a key in `without_taints`.
    """

    labels: Mapping[str, str] = {}
    without_resources: tuple[str, ...] = ()
    without_taints: frozenset[str] = frozenset()

    def spare(self, node: Node) -> bool:
        """Whether no preference may pull pods to the node.

        A resource counts as long as the node names it, even with a quantity of 0: a device plugin may come back.
        """
        if self.labels:
            labels = (node.metadata and node.metadata.labels) or {}
            if any(labels.get(key) != value for key, value in self.labels.items()):
                return True
        taints = (node.spec and node.spec.taints) or ()
        if any(taint.key in self.without_taints for taint in taints):
            return True
        return node.status is not None and self.are_named_in(bytes(node.status.capacity))

    def spared_among(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes to which no preference may pull pods.

        All capacities are searched at once, as usually none of them names a resource.
        """
        capacities = b"".join([node.status.capacity for node in nodes if node.status is not None])
        if not self.labels and not self.without_taints and not self.are_named_in(capacities):
            return []
        return [node for node in nodes if self.spare(node)]

    def are_named_in(self, document: bytes) -> bool:
        """Whether one of the resources is named in a JSON document, as a key or a whole string.

        JSON inside a string does not count, as its quotes are escaped.
        """
        for name in self._names:  # noqa: SIM110  # whole nodes come by the thousand, and `any` takes twice as long
            if name in document:
                return True
        return False

    @functools.cached_property
    def _names(self) -> tuple[bytes, ...]:
        return tuple(map(msgspec.json.encode, self.without_resources))


EVERY_NODE = NodeConditions()
"""No condition."""
