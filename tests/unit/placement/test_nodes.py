"""Platforms of nodes: what a node says of itself, and a view of many by name."""

import gc
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Node, NodeName
from extender.placement.nodes import NodePlatforms, platform_of_node, platforms_of
from tests.builders import ARCH, OS, decoded, node

AMD64, ARM64, S390X = (parse_platform(f"linux/{name}") for name in ("amd64", "arm64", "s390x"))
names = st.integers(0, 9).map(lambda number: NodeName(f"n{number}"))
platforms = st.none() | st.sampled_from([AMD64, ARM64, S390X, parse_platform("windows/amd64")])
clusters = st.dictionaries(names, platforms)
changes = st.one_of(
    st.tuples(st.just("put"), names, platforms),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("merge"), clusters),
    st.tuples(st.just("drop first"), st.integers(-1, 4)),
)


def change(nodes: NodePlatforms, model: dict[NodeName, Platform | None], how: tuple[object, ...]) -> None:
    match how:
        case ("put", str(name), Platform() | None as platform):
            nodes.put(NodeName(name), platform)
            model.pop(NodeName(name), None)
            model[NodeName(name)] = platform
        case ("drop", str(name)):
            nodes.drop(NodeName(name))
            model.pop(NodeName(name), None)
        case ("merge", dict(others)):
            nodes.merge(NodePlatforms(others))
            for name in others:
                model.pop(name, None)
            model |= others
        case ("drop first", int(number)):
            nodes.drop_first(number)
            for name in list(model)[: max(number, 0)]:
                del model[name]


@given(clusters, st.lists(changes, max_size=12))
def test_after_any_changes_it_says_what_a_dictionary_would(
    first: dict[NodeName, Platform | None], several: list[tuple[object, ...]]
) -> None:
    """By name, in order, counted, and by a number that means its platform."""
    nodes, model = NodePlatforms(first), dict(first)
    for each in several:
        change(nodes, model, each)
    assert list(nodes.items()) == list(model.items())
    assert nodes.distinct == {platform for platform in model.values() if platform}
    assert [nodes.platforms[number] for number in nodes.numbers.values()] == list(model.values())
    assert nodes.held() == Counter(model.values())
    assert NodeName("new") not in nodes


def test_platforms_that_have_left_are_forgotten() -> None:
    """A cluster may see any number of platforms, and have any number at once."""
    nodes = NodePlatforms({NodeName("old"): AMD64})
    for number in range(1000):
        nodes.put(NodeName("changing"), Platform("linux", f"kind{number}"))
    assert nodes.distinct == {AMD64, Platform("linux", "kind999")}
    assert len(nodes.platforms) <= 3
    for number in range(1000):
        nodes.put(NodeName(f"n{number}"), Platform("linux", f"kind{number}"))
    assert len(nodes.distinct) == 1001


KUBELET = {"architecture": "arm64", "operatingSystem": "linux", "kernelVersion": "6.8"}
LABELS = {ARCH: "amd64", OS: "windows"}
BETA = {"beta.kubernetes.io/arch": "ppc64le", "beta.kubernetes.io/os": "linux"}
LINUX = {OS: "linux"}


def node_of(info: dict[str, str] | None, labels: dict[str, str] | None) -> Node:
    return decoded({"metadata": {"name": "n", "labels": labels}, "status": info and {"nodeInfo": info}}, Node)


@pytest.mark.parametrize(
    ("info", "labels", "platform"),
    [
        pytest.param(KUBELET, None, "linux/arm64", id="kubelet"),
        pytest.param(KUBELET, LABELS | BETA, "linux/arm64", id="kubelet before labels"),
        pytest.param(None, LABELS, "windows/amd64", id="labels"),
        pytest.param({}, LABELS | BETA, "windows/amd64", id="empty info"),
        pytest.param({"architecture": "", "operatingSystem": ""}, LABELS, "windows/amd64", id="empty words"),
        pytest.param(None, BETA, "linux/ppc64le", id="beta"),
        pytest.param({"architecture": "riscv64"}, {**LINUX, ARCH: "amd64"}, "linux/riscv64", id="each by itself"),
        pytest.param(None, {ARCH: "aarch64", "beta.kubernetes.io/os": "linux"}, "linux/arm64", id="mixed"),
        pytest.param(None, {**LINUX, ARCH: "arm"}, "linux/arm/v7", id="arm"),
        pytest.param(None, {**LINUX, ARCH: ""}, None, id="empty label"),
        pytest.param(None, {ARCH: "amd64"}, None, id="no system"),
        pytest.param({"operatingSystem": "linux"}, {}, None, id="no architecture"),
        pytest.param(None, None, None, id="nothing"),
    ],
)
def test_a_node_is_what_it_says(
    info: dict[str, str] | None, labels: dict[str, str] | None, platform: str | None
) -> None:
    """The kubelet's word, else the labels, else the beta labels; half a platform is none."""
    expected = parse_platform(platform) if platform else None
    assert platform_of_node(node_of(info, labels)) == expected


def test_nodes_of_a_request_are_listed_by_name() -> None:
    """With a None for the one that states no platform, which is not among the distinct ones."""
    nodes = [decoded(each, Node) for each in (node("a"), node("b", None), node("c"))]
    listed = platforms_of([each.name for each in nodes], nodes)
    amd64 = parse_platform("linux/amd64")
    assert listed == {"a": amd64, "b": None, "c": amd64}
    assert listed.distinct == {amd64}


def test_long_words_of_a_node_are_not_kept() -> None:
    """A kubelet may state a megabyte in its node's status, another one at each heartbeat."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(50):
            info = {"architecture": f"{number:0100000d}", "operatingSystem": "linux"}
            platform = platform_of_node(node_of(info, {}))
            assert platform is not None
            assert platform.architecture == info["architecture"]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
