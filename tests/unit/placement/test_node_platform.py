"""From a node's own words to its platform."""

import gc
import tracemalloc

import msgspec
import pytest

from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import Node
from extender.placement.nodes import list_nodes, platform_of_node

LEVEL = "multiarch-extender.io/level"


def node_of(info: dict[str, str] | None, labels: dict[str, str] | None) -> Node:
    status = {"nodeInfo": info} if info is not None else None
    return msgspec.convert({"metadata": {"name": "n", "labels": labels}, "status": status}, Node)


KUBELET = {"architecture": "arm64", "operatingSystem": "linux", "kernelVersion": "6.8"}
LABELS = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "windows"}
BETA = {"beta.kubernetes.io/arch": "ppc64le", "beta.kubernetes.io/os": "linux"}


@pytest.mark.parametrize(
    ("info", "labels", "platform"),
    [
        (KUBELET, None, "linux/arm64"),
        (KUBELET, LABELS | BETA, "linux/arm64"),
        (None, LABELS, "windows/amd64"),
        ({}, LABELS | BETA, "windows/amd64"),
        ({"architecture": "", "operatingSystem": ""}, LABELS, "windows/amd64"),
        (None, BETA, "linux/ppc64le"),
        ({"architecture": "riscv64"}, {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}, "linux/riscv64"),
        (None, {"kubernetes.io/arch": "aarch64", "beta.kubernetes.io/os": "linux"}, "linux/arm64"),
        (None, {"kubernetes.io/arch": "arm", "kubernetes.io/os": "linux"}, "linux/arm/v7"),
        (None, {"kubernetes.io/arch": "", "kubernetes.io/os": "linux"}, None),
        (None, {"kubernetes.io/arch": "amd64"}, None),
        ({"operatingSystem": "linux"}, {}, None),
        (None, None, None),
    ],
    ids=[
        "kubelet", "kubelet-before-labels", "labels", "empty-info", "empty-words", "beta", "each-by-itself", "mixed",
        "arm", "empty-label", "no-system", "no-architecture", "nothing",
    ],
)  # fmt: skip
def test_a_node_is_what_it_says(
    info: dict[str, str] | None, labels: dict[str, str] | None, platform: str | None
) -> None:
    """The kubelet's word, else the labels, else the beta labels; half a platform is none."""
    expected = parse_platform(platform) if platform else None
    assert platform_of_node(node_of(info, labels)) == expected


@pytest.mark.parametrize(
    ("architecture", "level", "platform"),
    [
        ("amd64", "v3", "linux/amd64/v3"),
        ("amd64", "amd64-v2", "linux/amd64/v2"),
        ("amd64", "amd64/v4", "linux/amd64/v4"),
        ("amd64", "x86-64-v3", "linux/amd64/v3"),
        ("amd64", "x86_64_v3", "linux/amd64/v3"),
        ("amd64", "v1", "linux/amd64"),
        ("amd64", "arm64-v9", "linux/amd64"),
        ("amd64", "fast", "linux/amd64"),
        ("amd64", "", "linux/amd64"),
        ("amd64", "v3-beta", "linux/amd64"),
        ("arm64", "arm64/v9", "linux/arm64/v9"),
        ("arm64", "aarch64-v8.2", "linux/arm64/v8.2"),
        ("arm64", "v8", "linux/arm64"),
        ("arm", "v6", "linux/arm/v6"),
    ],
)
def test_the_level_label_states_the_variant(architecture: str, level: str, platform: str) -> None:
    """A label that speaks of another architecture, or says nothing of the kind, changes nothing."""
    info = {"architecture": architecture, "operatingSystem": "linux"}
    assert platform_of_node(node_of(info, {LEVEL: level})) == parse_platform(platform)


def test_without_the_level_label_a_node_is_baseline() -> None:
    """A level that another label states is not read."""
    info = {"architecture": "amd64", "operatingSystem": "linux"}
    assert platform_of_node(node_of(info, {"example.com/level": "v3", "": "v3"})) == parse_platform("linux/amd64")


def test_nodes_of_a_request_are_listed_by_name() -> None:
    """With a None for the one that states no platform, which is not among the distinct ones."""
    nodes = msgspec.json.decode(
        b'[{"metadata":{"name":"a"},"status":{"nodeInfo":{"architecture":"amd64","operatingSystem":"linux"}}},'
        b'{"metadata":{"name":"b"}},{"metadata":{"name":"c","labels":{"kubernetes.io/arch":"amd64","kubernetes.io/os":"linux"}}}]',
        type=list[Node],
    )
    amd64 = parse_platform("linux/amd64")
    listed = list_nodes(nodes)
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
