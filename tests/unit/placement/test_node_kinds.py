"""Nodes are counted by kind while they come, change and go."""

from extender.kubernetes.core_v1 import Node, NodeName
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import platform_of_node
from tests import builders
from tests.builders import decoded

A, B, C = map(NodeName, "abc")


def put(kinds: NodeKinds, name: NodeName, platform: str = "linux/amd64", **labels: str) -> None:
    node = decoded(builders.node(name, platform, labels), Node)
    kinds.put(name, node, platform_of_node(node))


def numbers(kinds: NodeKinds) -> list[int]:
    assert kinds.numbers is not None
    return sorted(kinds.numbers.values())


def test_a_node_that_goes_or_changes_is_counted_no_longer() -> None:
    kinds = NodeKinds()
    for name in (A, B):
        put(kinds, name)
    put(kinds, C, "linux/arm64")
    assert numbers(kinds) == [1, 2]
    put(kinds, B, "linux/arm64")
    put(kinds, B, "linux/arm64")  # as it is
    assert numbers(kinds) == [1, 2]
    for name in (A, A, NodeName("unseen")):
        kinds.drop(name)
    assert numbers(kinds) == [2]
    for name in (B, C):
        kinds.drop(name)
    assert numbers(kinds) == []


def test_too_many_kinds_are_none_until_those_beyond_are_gone() -> None:
    """A node that replaces one of them counts again."""
    kinds = NodeKinds()
    names = [NodeName(f"n{at}") for at in range(2_000)]
    for name in names:
        put(kinds, name, disk=f"of-{name}")
    assert kinds.numbers is None
    for name in names[1:]:
        kinds.drop(name)
    assert numbers(kinds) == [1]
    put(kinds, A)
    assert numbers(kinds) == [1, 1]
