"""The node view: what it holds after each change, and how a name that is not in it is looked up."""

import asyncio
import json
from collections.abc import Callable, Mapping

import msgspec
import pytest

from extender.cluster.client import JSON, ClusterRefused
from extender.cluster.nodes import WatchedNodes
from extender.errors import ClusterError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.metrics import REGISTRY
from extender.placement.nodes import NodeLookup
from testbed.clock import Clock

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


def node(name: str, architecture: str | None = "amd64", **labels: str) -> bytes:
    """A node as the API server writes it."""
    info = {"architecture": architecture, "operatingSystem": "linux"} if architecture is not None else None
    return json.dumps(
        {"metadata": {"name": name, "labels": labels or None}, "spec": {}, "status": {"nodeInfo": info}}
    ).encode()


class Lookups:
    """An API server that has some nodes, and remembers who was asked for."""

    def __init__(self, *documents: bytes) -> None:
        self.documents = {json.loads(document)["metadata"]["name"]: document for document in documents}
        self.names: list[str] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.failure: ClusterError | None = None
        self.failing: set[str] = set()

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> bytes:
        name = path.removeprefix("/api/v1/nodes/")
        self.names.append(name)
        self.before_answer()
        if self.failure:
            raise self.failure
        if name in self.failing:
            raise ClusterError("connection reset")
        if name == "slow":
            await asyncio.Event().wait()
        if name not in self.documents:
            raise ClusterRefused("not found", 404)
        return self.documents[name]


class View:
    """A node view with its clock and API server; synced, with nodes `a` (amd64) and `b` (arm64)."""

    def __init__(self, *others: bytes, level_label: str = "") -> None:
        self.clock = Clock()
        self.lookups = Lookups(*others)
        self.nodes = WatchedNodes(self.lookups, level_label=level_label, clock=self.clock, random=lambda: 0.0)
        self.nodes.upsert(node("a"))
        self.nodes.upsert(node("b", "arm64"))
        self.nodes.keep_only({"a", "b"})


def gauge(architecture: str) -> float | None:
    """What Prometheus would read."""
    return REGISTRY.get_sample_value("multiarch_cluster_nodes", {"architecture": architecture})


def test_view_is_synced_after_the_first_whole_list_only() -> None:
    """Nodes that came in before the list ended do not make a view."""
    nodes = WatchedNodes(Lookups(), level_label="", clock=lambda: 0.0)
    assert not nodes.synced
    nodes.upsert(node("a"))
    assert not nodes.synced
    nodes.keep_only({"a"})
    assert nodes.synced


def test_node_has_the_platform_it_states() -> None:
    """The view maps names to platforms."""
    assert dict(View().nodes.platforms) == {A: AMD64, B: ARM64}


@pytest.mark.parametrize(
    ("document", "platform"),
    [
        pytest.param(
            node("c", "arm64", **{"kubernetes.io/arch": "amd64"}), ARM64, id="the kubelet's word beats a label"
        ),
        pytest.param(node("c", "arm64", **{"kubernetes.io/arch": ""}), ARM64, id="empty label"),
        pytest.param(
            node("c", None, **{"kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux"}), ARM64, id="label alone"
        ),
        pytest.param(node("c", None), None, id="no platform stated"),
        pytest.param(b'{"metadata":{"name":"c"}}', None, id="bare node"),
        pytest.param(node("c", "amd64", level="v3"), Platform("linux", "amd64", "v3"), id="level label"),
    ],
)
def test_platform_of_a_node_in_view(document: bytes, platform: Platform | None) -> None:
    """What a node states in its status, its labels and the operator's level label arrives in the view."""
    view = View(level_label="level")
    view.nodes.upsert(document)
    assert view.nodes.platforms[C] == platform


def test_platforms_cannot_be_changed_from_outside() -> None:
    """The view is read-only for its readers, and shows later changes."""
    view = View()
    platforms = view.nodes.platforms
    with pytest.raises(TypeError):
        platforms[C] = AMD64  # type: ignore[index]  # what must not work
    view.nodes.upsert(node("c"))
    assert platforms[C] == AMD64


def test_distinct_platforms_follow_their_first_and_last_node() -> None:
    """A platform occurs as long as one node has it; nodes that state none count for nothing."""
    nodes = View().nodes
    assert nodes.platforms.distinct == {AMD64, ARM64}
    nodes.upsert(node("c", "arm64"))
    nodes.delete("b")
    assert nodes.platforms.distinct == {AMD64, ARM64}
    nodes.upsert(node("c", None))
    assert nodes.platforms.distinct == {AMD64}
    nodes.upsert(node("c", "s390x"))
    assert nodes.platforms.distinct == {AMD64, Platform("linux", "s390x")}


def test_heartbeat_changes_nothing() -> None:
    """The same node again leaves the very same set of platforms, although it was the only one of its kind."""
    nodes = View().nodes
    before = nodes.platforms.distinct
    nodes.upsert(node("b", "arm64"))
    assert nodes.platforms.distinct is before
    assert nodes.count("arm64") == 1


def test_equal_platforms_are_one_object() -> None:
    """15,000 nodes of one pool hold one platform."""
    nodes = View().nodes
    nodes.upsert(node("c", "arm64"))
    nodes.upsert(node("d", "arm64"))
    assert nodes.platforms[C] is nodes.platforms[NodeName("d")]


def test_list_removes_what_it_does_not_name() -> None:
    """Nodes that went away unseen leave with their platform."""
    nodes = View().nodes
    nodes.upsert(node("b", "arm64"))
    nodes.keep_only({"a"})
    assert dict(nodes.platforms) == {A: AMD64}
    assert nodes.platforms.distinct == {AMD64}


def test_unknown_name_is_deleted_without_harm() -> None:
    """A deletion of what was never seen changes nothing."""
    nodes = View().nodes
    nodes.delete("never-seen")
    assert nodes.platforms.distinct == {AMD64, ARM64}


@pytest.mark.parametrize(
    "document",
    [b'{"metadata":{"name":"a"},"status":{"nodeInfo":{"architecture":7}}}', b'{"metadata":{}}', b"{}", b"[]"],
    ids=["wrong type", "no name", "no metadata", "no object"],
)
def test_node_that_is_none_is_refused_whole(document: bytes) -> None:
    """What is not a node leaves the view as it was."""
    nodes = View().nodes
    with pytest.raises((msgspec.ValidationError, ClusterError)):
        nodes.upsert(document)
    assert dict(nodes.platforms) == {A: AMD64, B: ARM64}


def test_nodes_are_counted_by_architecture() -> None:
    """The gauge has a fixed set of architectures; the rest, and nodes that state none, are `other`."""
    nodes = View().nodes
    nodes.upsert(node("c", "arm64"))
    nodes.upsert(node("d", "loong64"))
    nodes.upsert(node("e", None))
    counted = {name: gauge(name) for name in ("amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64", "other")}
    assert counted == {"amd64": 1, "arm64": 2, "other": 2} | dict.fromkeys(
        ("arm", "386", "ppc64le", "s390x", "riscv64"), 0
    )


async def test_node_missing_from_the_view_is_looked_up_and_kept() -> None:
    """The scheduler may know a node before we do: one GET brings it into the view."""
    view = View(node("c", "arm64"))
    assert await view.nodes.find([A, C], 1.0) == NodeLookup()
    assert view.lookups.names == ["c"]
    assert view.nodes.platforms[C] == ARM64
    assert view.nodes.count("arm64") == 2


async def test_node_that_does_not_exist_is_asked_for_once_in_ten_seconds() -> None:
    """A wrong name costs one GET, not one per scheduling attempt."""
    view = View()
    for elapsed, count in ((0.0, 1), (9.9, 1), (0.1, 2)):
        view.clock.advance(elapsed)
        assert await view.nodes.find([C], 1.0) == NodeLookup(absent=(C,))
        assert len(view.lookups.names) == count


async def test_watch_ends_the_memory_of_a_missing_node() -> None:
    """A node that was missing, came and went is looked up again at once."""
    view = View()
    await view.nodes.find([C], 1.0)
    view.nodes.upsert(node("c"))
    view.nodes.delete("c")
    await view.nodes.find([C], 1.0)
    assert view.lookups.names == ["c", "c"]


async def test_slow_lookup_leaves_the_node_unasked_and_the_others_found() -> None:
    """The caller's budget holds for all lookups together, and for a second nobody waits like that again."""
    view = View(node("c"))
    slow = NodeName("slow")
    assert await view.nodes.find([slow, C], 0.01) == NodeLookup(unreachable=(slow,))
    view.clock.advance(0.9)
    assert await view.nodes.find([slow], 60.0) == NodeLookup(unreachable=(slow,))
    assert sorted(view.lookups.names) == ["c", "slow"]
    view.clock.advance(0.1)
    assert await view.nodes.find([slow], 0.01) == NodeLookup(unreachable=(slow,))
    assert sorted(view.lookups.names) == ["c", "slow", "slow"]


@pytest.mark.parametrize(
    "failure", [ClusterRefused("forbidden", 403), ClusterError("connection refused")], ids=["403", "unreachable"]
)
async def test_node_that_cannot_be_asked_about_may_exist(failure: ClusterError) -> None:
    """An API server that cannot answer has not said that there is no such node; a second later it is asked again."""
    view = View(node("c"))
    view.lookups.failure = failure
    assert await view.nodes.find([C], 1.0) == NodeLookup(unreachable=(C,))
    view.lookups.failure = None
    assert await view.nodes.find([C], 1.0) == NodeLookup(unreachable=(C,))
    view.clock.advance(1)
    assert await view.nodes.find([C], 1.0) == NodeLookup()
    assert view.lookups.names == ["c", "c"]


async def test_one_call_at_a_time_looks_up_after_a_failure() -> None:
    """The others wait for nothing; they go on when it has succeeded, or was broken off."""
    view = View(node("c"))
    slow = NodeName("slow")
    await view.nodes.find([slow], 0.01)
    view.clock.advance(1)
    probe = asyncio.create_task(view.nodes.find([slow], 60.0))
    while len(view.lookups.asked) < 2:
        await asyncio.sleep(0)
    assert await view.nodes.find([C], 1.0) == NodeLookup(unreachable=(C,))
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert await view.nodes.find([C], 1.0) == NodeLookup()
    assert view.lookups.asked == ["slow", "slow", "c"]


async def test_one_name_that_fails_is_a_failure_of_the_call() -> None:
    """Whatever the other names' lookups say after it."""
    view = View(node("c"))
    view.lookups.failing = {"d"}
    d = NodeName("d")
    assert await view.nodes.find([d, C], 1.0) == NodeLookup(unreachable=(d,))
    assert await view.nodes.find([d], 1.0) == NodeLookup(unreachable=(d,))
    assert view.lookups.asked == ["d", "c"]


async def test_malformed_node_is_an_absent_node() -> None:
    """It never will be in view, so nobody should wait for it."""
    view = View()
    view.lookups.documents["c"] = b'{"metadata":{"name":7}}'
    assert await view.nodes.find([C], 1.0) == NodeLookup(absent=(C,))


async def test_watch_beats_a_lookup_under_way() -> None:
    """What the watch said while the GET was out is newer than its answer."""
    view = View(node("c", "amd64"))
    view.lookups.before_answer = lambda: view.nodes.upsert(node("c", "arm64"))
    assert await view.nodes.find([C], 1.0) == NodeLookup()
    assert view.nodes.platforms[C] == ARM64


async def test_nothing_is_looked_up_before_the_view_is_synced() -> None:
    """Without a first list every name is missing, and GETs one by one would be no list."""
    lookups = Lookups(node("c"))
    nodes = WatchedNodes(lookups, level_label="", clock=lambda: 0.0)
    assert await nodes.find([C], 1.0) == NodeLookup(unreachable=(C,))
    assert lookups.names == []


@pytest.mark.parametrize(
    "name", ["..", "../pods", "a/b", "a?b", "a%2fb", "", "A", "-a", "a.", "a" * 254, "a\n"], ids=repr
)
async def test_name_that_no_node_can_have_is_not_asked_for(name: str) -> None:
    """A name becomes part of a path: only RFC 1123 subdomains do."""
    view = View()
    assert await view.nodes.find([NodeName(name)], 1.0) == NodeLookup(absent=(NodeName(name),))
    assert view.lookups.names == []


async def test_lookups_of_one_call_are_bounded() -> None:
    """A request full of unknown names does not become thousands of GETs."""
    view = View()
    names = [NodeName(f"n{number}") for number in range(5000)]
    assert await view.nodes.find(names, 1.0) == NodeLookup(absent=tuple(names[:16]), unreachable=tuple(names[16:]))
    assert len(view.lookups.names) == 16


async def test_memory_of_missing_names_is_bounded_and_expires() -> None:
    """Names from outside are forgotten after their time, and the oldest when there are too many."""
    view = View()
    for number in range(2000):
        await view.nodes.find([NodeName(f"n{number}")], 1.0)
    assert len(view.nodes._missing) == 1024
    view.clock.advance(11)
    await view.nodes.find([C], 1.0)
    assert set(dict(view.nodes._missing.items())) == {C}


async def test_cancelled_lookup_leaves_the_view_as_it_was() -> None:
    """A caller that hangs up neither adds a node nor marks one as missing."""
    view = View(node("slow"))
    finding = asyncio.create_task(view.nodes.find([NodeName("slow")], 60.0))
    while not view.lookups.names:
        await asyncio.sleep(0)
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    assert dict(view.nodes.platforms) == {A: AMD64, B: ARM64}
    assert len(view.nodes._missing) == 0
