"""The platform of a node, whether a preference may pull to it, and a fast mapping of thousands of names to platforms.

Depends on neither pods nor images.
"""

import functools
import re
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice

import msgspec

from extender.errors import ExtenderError, InvalidRequest
from extender.images.platform import Platform, normalize_platform
from extender.kubernetes.core_v1 import Node, NodeName, NodeSystemInfo
from extender.kubernetes.extender_v1 import quote, unquote
from extender.placement.node_images import NodeImages


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


USUAL = (Platform("linux", "amd64"), Platform("linux", "arm64"))
"""The platforms of nodes that any cluster may get."""

UNSEEN = 255
"""The code of a node that is not in view."""

_OS_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")
_ARCHITECTURE_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
_LEVEL = re.compile(r"(?:(?P<architecture>.+)[/._-])?(?P<variant>[vV]\d+(?:\.\d+)?)", re.ASCII)


class TooManyPlatforms(ExtenderError):
    """No code is left, because the nodes have more than 254 platforms. A usual cluster has a handful."""


class _Codes(dict[bytes, int]):
    """Codes by quoted name, `UNSEEN` for any other name."""

    __slots__ = ()

    def __missing__(self, _raw_name: bytes) -> int:
        return UNSEEN


class NodePlatforms(Mapping[NodeName, Platform | None]):
    """The platform of each node by name, None for a node that states none. `codes_of` looks up many names at once.

    A cluster has few platforms, so each has a code of one byte, and another for nodes that are spared preferences.
    Names are kept quoted, as requests write them. So the names of a request are mapped to a byte each, and no Python
    object is made for a node except its name.
    """

    def __init__(
        self, platforms: Mapping[NodeName, Platform | None] | None = None, spared: Set[NodeName] = frozenset()
    ) -> None:
        """`spared` has the names of the nodes that no preference may pull pods to."""
        self._codes = _Codes()
        self._by_code: list[Platform | None] = [None]
        self._spared_by_code = [False]
        self._nodes_by_code = [0]
        self.distinct: frozenset[Platform] = frozenset()
        self.images = NodeImages()
        """What the nodes list; nothing where it is not watched."""
        if platforms:
            self._fill(platforms, spared)

    def __getitem__(self, name: NodeName) -> Platform | None:
        """The node's platform. Raises KeyError for a node that is not in view."""
        code = self._codes[quote(name)]
        if code == UNSEEN:
            raise KeyError(name)
        return self._by_code[code]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and quote(NodeName(name)) in self._codes

    def __iter__(self) -> Iterator[NodeName]:
        return map(unquote, self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def by_code(self) -> Sequence[Platform | None]:
        """The platform of each code."""
        return self._by_code

    @property
    def spared_by_code(self) -> Sequence[bool]:
        """Whether no preference may pull pods to the nodes of each code."""
        return self._spared_by_code

    def coded(self) -> ItemsView[bytes, int]:
        """Each node's quoted name and its platform's code."""
        return self._codes.items()

    def codes_of(self, raw_name: Iterable[bytes]) -> bytes:
        """A code for each quoted name, `UNSEEN` for a node that is not in view. 40 ns a name."""
        return bytes(map(self._codes.__getitem__, raw_name))

    def count(self, platform: Platform | None) -> int:
        """The number of nodes with this platform. O(distinct platforms)."""
        return sum(
            number
            for number, other in zip(self._nodes_by_code, self._by_code, strict=True)
            if number and other == platform
        )

    def put(self, name: NodeName, platform: Platform | None, *, spared: bool = False) -> None:
        """Adds the node or replaces its platform; the node becomes the last in order.

        `spared`: no preference may pull pods to it.

        Raises:
            TooManyPlatforms: there are more than 254 platforms.
        """
        code = self._hold(
            platform, spared=spared
        )  # before `drop`, so that `distinct` keeps the platform of a node put again
        self.drop(name)
        self._codes[quote(name)] = code
        if platform and platform not in self.distinct:
            self._find_distinct()

    def merge(self, others: "NodePlatforms") -> None:
        """Puts all nodes of `others`."""
        own = [
            self._hold(platform if platform in others.distinct else None, spared=spared)
            for platform, spared in zip(others.by_code, others.spared_by_code, strict=True)
        ]
        for raw_name, code in others.coded():
            before = self._codes.pop(raw_name, UNSEEN)
            if before != UNSEEN:
                self._nodes_by_code[before] -= 1
            self._codes[raw_name] = own[code]
            self._nodes_by_code[own[code]] += 1
        for code in own:
            self._nodes_by_code[code] -= 1
        self._find_distinct()

    def drop_first(self, number: int) -> None:
        """Drops the `number` nodes that were put longest ago; none if `number` is negative."""
        for name in list(islice(self, max(number, 0))):
            self.drop(name)

    def drop(self, name: NodeName) -> None:
        """Removes the node; does nothing if it is not in view."""
        code = self._codes.pop(quote(name), UNSEEN)
        if code == UNSEEN:
            return
        self._nodes_by_code[code] -= 1
        if not self._nodes_by_code[code]:
            self._find_distinct()

    def _fill(self, platforms: Mapping[NodeName, Platform | None], spared: Set[NodeName]) -> None:
        codes = {}
        for platform, number in Counter(platforms.values()).items():
            codes[platform] = code = self._hold(platform)
            self._nodes_by_code[code] = number
        self._codes.update(zip(map(quote, platforms), map(codes.__getitem__, platforms.values()), strict=True))
        self._find_distinct()
        for name in platforms if spared else ():
            if name in spared:
                code = self._hold(platforms[name], spared=True)
                self._nodes_by_code[self._codes[quote(name)]] -= 1
                self._codes[quote(name)] = code

    def _hold(self, platform: Platform | None, *, spared: bool = False) -> int:
        """The platform's code, after counting one more node for it so that no other platform takes the code."""
        code = self._code_of(platform, spared=spared and platform is not None)
        self._nodes_by_code[code] += 1
        return code

    def _code_of(self, platform: Platform | None, *, spared: bool) -> int:
        """The platform's present code, or a code that no node has, now assigned to the platform."""
        if platform is None:
            return 0
        free = 0
        for code, other in enumerate(self._by_code):
            if other == platform and self._spared_by_code[code] is spared:
                return code
            if code and not self._nodes_by_code[code]:
                free = code
        if not free:
            if len(self._by_code) == UNSEEN:
                raise TooManyPlatforms(f"nodes of more than {UNSEEN - 1} different platforms")
            free = len(self._by_code)
            self._by_code.append(None)
            self._spared_by_code.append(False)
            self._nodes_by_code.append(0)
        self._by_code[free] = platform
        self._spared_by_code[free] = spared
        return free

    def _find_distinct(self) -> None:
        present = zip(self._nodes_by_code, self._by_code, strict=True)
        self.distinct = frozenset(platform for number, platform in present if number and platform)


class NodeLookup(msgspec.Struct, frozen=True):
    """The result of looking up nodes that were not in view, apart from those that are in view now.

    `absent`: nodes that the cluster does not have, or that state no platform. `unreachable`: nodes that may exist, but
    could not be looked up.
    """

    absent: tuple[NodeName, ...] = ()
    unreachable: tuple[NodeName, ...] = ()


def list_nodes(nodes: Sequence[Node], level_label: str, conditions: NodeConditions = EVERY_NODE) -> NodePlatforms:
    """The platforms of the whole nodes in a request; `level_label` as in `platform_of_node`.

    Raises:
        InvalidRequest: there are more than 254 platforms.
    """
    try:
        platforms = {name_of_node(node): platform_of_node(node, level_label) for node in nodes}
        return NodePlatforms(platforms, {name_of_node(node) for node in conditions.spared_among(nodes)})
    except TooManyPlatforms as exc:
        raise InvalidRequest(f"ExtenderArgs.Nodes: {exc}") from exc


def name_of_node(node: Node) -> NodeName:
    """The node's name, empty if it has none."""
    return NodeName((node.metadata and node.metadata.name) or "")


def platform_of_node(node: Node, level_label: str) -> Platform | None:
    """The node's platform; None if it states no operating system or no architecture.

    For each of the two, the kubelet's `status.nodeInfo` comes before the labels, and the labels before the beta labels.
    `level_label` is the key of the label that states an instruction set level, `v3` or `amd64-v3`; empty for no such
    label. A label value cannot hold a slash, but `amd64/v3` is accepted too. A level of another architecture is
    ignored.
    """
    labels = (node.metadata and node.metadata.labels) or {}
    info = (node.status and node.status.node_info) or NodeSystemInfo()
    os = info.operating_system or _first(labels, _OS_LABELS)
    architecture = info.architecture or _first(labels, _ARCHITECTURE_LABELS)
    if not os or not architecture:
        return None
    level = labels.get(level_label, "") if level_label else ""
    platform = normalize_platform(os, architecture)
    found = _LEVEL.fullmatch(level)
    return _with_level(platform, found["architecture"], found["variant"]) if found else platform


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _with_level(platform: Platform, architecture: str | None, variant: str) -> Platform:
    stated = normalize_platform(platform.os, architecture or platform.architecture, variant)
    return stated if stated.architecture == platform.architecture else platform
