"""Which images the nodes of a cluster say that they have, by name.

A node lists the largest fifty, without platforms. So a name that is listed lets a node stay eligible for an image that
no registry answers for, and one that is not says nothing.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from extender.errors import InvalidReference
from extender.images.reference import parse_reference
from extender.kubernetes.core_v1 import NodeName
from extender.placement.facts import PodImage

# Of one node, more than a kubelet sends unless it is set to; of all nodes together. A name's nodes are a bit each, so
# 10,000 names on 15,000 nodes take 20 MB.
_MOST_OF_NODE, _MOST_NAMES, _MOST_CHARACTERS = 250, 10_000, 512


class NodeImages:
    """The images of each node, as nodes state them."""

    def __init__(self) -> None:
        self._bits: dict[NodeName, int] = {}
        self._free: list[int] = []
        self._names: dict[NodeName, tuple[str, ...]] = {}
        self._nodes: dict[str, int] = {}  # by image name, a bit for each node that lists it
        self._spellings: dict[str, str] = {}

    def put(self, node: NodeName, names: Iterable[str]) -> None:
        """Replaces what the node lists. Names beyond what is kept are left out."""
        kept = tuple(islice((name for name in names if len(name) <= _MOST_CHARACTERS), _MOST_OF_NODE))
        if kept == self._names.get(node, ()):
            return
        self.drop(node)
        bit = self._bits[node] = self._free.pop() if self._free else len(self._bits)
        self._names[node] = tuple(self._add(name, bit) for name in kept)

    def _add(self, name: str, bit: int) -> str:
        """Notes that a node lists the name; returns the one spelling of it that all nodes share."""
        if name in self._nodes or len(self._nodes) < _MOST_NAMES:
            self._nodes[name] = self._nodes.get(name, 0) | 1 << bit
            return self._spellings.setdefault(name, name)
        return ""

    def drop(self, node: NodeName) -> None:
        """Removes what the node lists."""
        bit = self._bits.pop(node, None)
        if bit is None:
            return
        self._free.append(bit)
        for name in self._names.pop(node):
            left = self._nodes.pop(name, 0) & ~(1 << bit)
            if left:
                self._nodes[name] = left
            else:
                self._spellings.pop(name, None)

    def lists(self, image: PodImage) -> bool:
        """Whether a node lists the image, and a kubelet uses such a copy without asking a registry."""
        return self._nodes_with(image) != 0

    def nodes_with(self, images: Sequence[PodImage]) -> "frozenset[NodeName]":
        """The nodes that list all of the images, each of which a kubelet uses without asking a registry."""
        common = -1
        for image in images:
            common &= self._nodes_with(image)
        if common <= 0:
            return frozenset()
        return frozenset(node for node, bit in self._bits.items() if common >> bit & 1)

    def _nodes_with(self, image: PodImage) -> int:
        if image.pull_policy == "Always" or not self._nodes:
            return 0
        try:
            reference = parse_reference(image.reference)
        except InvalidReference:
            return 0
        if reference.digest:
            return self._nodes.get(f"{reference.repository}@{reference.digest}", 0)
        is_always = not image.pull_policy and reference.tag == "latest"  # the API server's default
        return 0 if is_always else self._nodes.get(str(reference), 0)
