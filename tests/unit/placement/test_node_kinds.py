"""Nodes counted by what pods' words and images tell apart."""

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeMeta, NodeName, NodeSpec, Taint
from extender.placement.node_kinds import NodeKinds


def node(name: str, pool: str, *taints: Taint) -> Node:
    labels = {"kubernetes.io/hostname": name, "pool": pool, "example.com/id": name}
    return Node(metadata=NodeMeta(name=name, labels=labels), spec=NodeSpec(taints=taints))


def put(kinds: NodeKinds, name: str, made: Node) -> None:
    kinds.put(NodeName(name), made, Platform("linux", "amd64"))


def test_nodes_of_a_pool_are_one_kind_until_they_go() -> None:
    """Names make no difference, and neither do taints of conditions, which come and go."""
    kinds = NodeKinds()
    not_ready = Taint("node.kubernetes.io/not-ready", None, "NoSchedule")
    put(kinds, "a", node("a", "x"))
    put(kinds, "b", node("b", "x", not_ready))
    put(kinds, "c", node("c", "x", Taint("gpu", None, "NoSchedule")))
    put(kinds, "a", node("a", "y"))
    assert sorted((kinds.numbers or {}).values()) == [1, 1, 1]
    put(kinds, "a", node("a", "x"))
    assert sorted((kinds.numbers or {}).values()) == [1, 2]
    for name in ("a", "b", "c", "never"):
        kinds.drop(NodeName(name))
    assert kinds.numbers == {}


def test_too_many_kinds_are_not_known_and_are_again_when_they_go() -> None:
    """Nothing is said by a part of the nodes."""
    kinds = NodeKinds()
    for number in range(257):
        put(kinds, f"n{number}", node(f"n{number}", f"pool-{number}"))
    assert number_of(kinds) is None
    kinds.drop(NodeName("n256"))
    assert number_of(kinds) == 256
    put(kinds, "large", node("large", "x" * 9000))
    assert number_of(kinds) is None


def number_of(kinds: NodeKinds) -> int | None:
    return None if kinds.numbers is None else len(kinds.numbers)
