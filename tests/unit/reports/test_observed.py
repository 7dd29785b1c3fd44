"""What enforcing would change, from observations, pods and nodes."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from extender.images.platform import Compatibility
from extender.kubernetes.audited_v1 import AuditedNode, AuditedPod
from extender.reports.observed import (
    LivePods,
    Observations,
    ObservedReport,
    ObservedWorkload,
    merged,
    observed,
    workload_of,
)
from extender.reports.workloads import WorkloadKey

BOTH = ["linux/amd64", "linux/arm64"]


def row(name: str, platforms: list[str] | None, kind: str = "StatefulSet", **given: Any) -> ObservedWorkload:
    """An observed workload of the namespace shop."""
    defaults: dict[str, Any] = {
        "namespace": "shop",
        "first_seen": "2026-01-01T00:00:00Z",
        "last_seen": "2026-01-02T00:00:00Z",
        "reviewed": {"patched": 1},
        "filtered": {},
        "refused": 0,
        "is_refused": False,
        "reason": "",
    }
    return ObservedWorkload(**(defaults | {"kind": kind, "name": name, "platforms": platforms} | given))


def observations(*rows: ObservedWorkload, **given: Any) -> Observations:
    """What one process has observed in a day."""
    defaults: dict[str, Any] = {
        "since": "2026-01-01T00:00:00Z",
        "until": "2026-01-02T00:00:00Z",
        "restricts": True,
        "left_out": 0,
    }
    return Observations(**(defaults | {"workloads": list(rows)} | given))


def node(name: str, architecture: str, cpu: str = "4", memory: str = "8Gi", pods: str = "110") -> dict[str, Any]:
    """A Linux node."""
    return {
        "metadata": {"name": name},
        "status": {
            "nodeInfo": {"architecture": architecture, "operatingSystem": "linux"},
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods},
        },
    }


def pod(owner: str, on: str, cpu: str = "1", memory: str = "1Gi", phase: str = "Running") -> dict[str, Any]:
    """A pod of that StatefulSet on a node."""
    return {
        "metadata": {
            "namespace": "shop",
            "name": f"{owner}-0",
            "ownerReferences": [{"kind": "StatefulSet", "name": owner, "controller": True}],
        },
        "spec": {
            "nodeName": on,
            "containers": [{"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
        },
        "status": {"phase": phase},
    }


def report(given: Observations, pods: Sequence[dict[str, Any]], nodes: Sequence[dict[str, Any]]) -> ObservedReport:
    """The report about these."""
    live = LivePods(
        pods=msgspec.convert(list(pods), list[AuditedPod]), nodes=msgspec.convert(list(nodes), list[AuditedNode])
    )
    return observed(given, live, Compatibility())


@pytest.mark.parametrize(
    ("owner", "name", "generate_name", "expected"),
    [
        (("ReplicaSet", "web-5d4f8c7b9f"), "web-5d4f8c7b9f-x", "", ("Deployment", "web")),
        (("ReplicaSet", "web-old"), "web-old-x", "", ("ReplicaSet", "web-old")),
        (("ReplicaSet", "web-aeiou1"), "x", "", ("ReplicaSet", "web-aeiou1")),
        (("Job", "nightly-29012345"), "x", "", ("Job", "nightly-*")),
        (("Job", "import-7"), "x", "", ("Job", "import-7")),
        (("StatefulSet", "db"), "db-0", "", ("StatefulSet", "db")),
        (None, "alone", "", ("Pod", "alone")),
        (None, "runner-x7k2p", "runner-", ("Pod", "runner-*")),
        (None, "", "runner-", ("Pod", "runner-*")),
    ],
)
def test_workloads_are_told_by_names_alone(
    owner: tuple[str, str] | None, name: str, generate_name: str, expected: tuple[str, str]
) -> None:
    """So the service at a pod's creation and the command later agree, and neither reads another object."""
    assert workload_of("shop", owner, name, generate_name) == WorkloadKey("shop", *expected)


def test_pods_on_nodes_that_do_not_run_them_move() -> None:
    """By the platform that they are on; finished pods, waiting ones and those of others are not counted."""
    given = observations(row("amd", ["linux/amd64"]), row("both", BOTH), row("free", None))
    pods = [
        pod("amd", "arm"), pod("amd", "amd"), pod("amd", "arm", phase="Succeeded"), pod("amd", ""),
        pod("both", "arm"), pod("free", "arm"), pod("other", "arm"),
    ]  # fmt: skip
    found = report(given, pods, [node("arm", "arm64"), node("amd", "amd64")])
    assert found.moved == {"linux/arm64": 1}
    by_name = {each.name: (each.running, each.moved, each.is_changed) for each in found.workloads}
    assert by_name == {
        "amd": (2, {"linux/arm64": 1}, True),
        "both": (1, {}, False),
        "free": (1, {}, False),
    }


def test_no_pod_moves_where_there_is_nowhere_to_go_or_nothing_keeps_it() -> None:
    """Such pods are refused, not moved; and settings that restrict nothing move nobody, which is said."""
    arm = [node("arm", "arm64")]
    refused = report(observations(row("amd", ["linux/amd64"], refused=1)), [pod("amd", "arm")], arm)
    assert (refused.refused, refused.moved, refused.nodes_needed) == (1, {}, [])
    contradicted = observations(row("amd", ["linux/amd64"], refused=1, is_refused=True))
    assert report(contradicted, [pod("amd", "arm")], [*arm, node("amd", "amd64")]).moved == {}
    loose = observations(row("amd", ["linux/amd64"]), restricts=False)
    found = report(loose, [pod("amd", "arm")], [*arm, node("amd", "amd64")])
    assert found.moved == {}
    assert any("admission.node_affinity" in problem for problem in found.problems)


def test_counts_are_by_what_would_have_become_of_pods() -> None:
    """Refused pods are not patched ones; what the scheduler was asked counts where no review came."""
    reviewed = {"patched": 3, "unchanged": 2, "impossible": 1, "gated": 4, "unresolved": 5, "assumed": 1}
    given = observations(
        row("web", BOTH, reviewed=reviewed, filtered={"passed": 16}, refused=1),
        row("batch", ["linux/arm64"], reviewed={}, filtered={"narrowed": 2, "refused": 1, "retried": 3}, refused=1),
    )
    found = report(given, [], [])
    web, batch = found.workloads
    assert (web.pods, web.refused, web.held, web.unresolved, web.patched) == (16, 1, 4, 5, 4)
    assert (batch.pods, batch.refused, batch.held, batch.patched) == (6, 1, 3, 0)
    assert (found.pods, found.refused, found.held, found.unresolved) == (22, 2, 7, 5)


@pytest.mark.parametrize(
    ("pods", "arm_cpu", "free_pods", "nodes"),
    [
        (3, "4", "110", 0),
        (4, "4", "110", 0),
        (5, "4", "110", 1),
        (9, "4", "110", 2),
        (4, "4", "2", 1),
        (1, "500m", "110", None),
    ],
    ids=["fits", "fits exactly", "one too many", "five too many", "no room for its number", "larger than any node"],
)
def test_nodes_are_needed_for_what_does_not_fit(pods: int, arm_cpu: str, free_pods: str, nodes: int | None) -> None:
    """Beside what is free on the nodes that there are, in nodes of the size of the largest."""
    given = observations(row("arm", ["linux/arm64"]))
    moving = [pod("arm", "amd") for _ in range(pods)]
    found = report(given, moving, [node("amd", "amd64", cpu="64"), node("arm", "arm64", cpu=arm_cpu, pods=free_pods)])
    (needed,) = found.nodes_needed
    assert (needed.platforms, needed.pods, needed.cpu_cores) == (["linux/arm64"], pods, pods)
    assert needed.nodes == nodes


def test_pods_that_are_there_take_room_and_cordoned_nodes_give_none() -> None:
    """A node that takes no new pods is neither room nor a size to go by."""
    given = observations(row("arm", ["linux/arm64"]))
    cordoned = node("cordoned", "arm64", cpu="64") | {"spec": {"unschedulable": True}}
    nodes = [node("amd", "amd64", cpu="64"), node("arm", "arm64"), cordoned]
    found = report(given, [pod("arm", "amd"), *(pod("other", "arm") for _ in range(4))], nodes)
    assert [(each.nodes, each.node_cpu_cores) for each in found.nodes_needed] == [(1, 4.0)]


def test_replicas_are_merged() -> None:
    """Counts add up, the last decision stands, and times span both."""
    older = row("web", BOTH, last_seen="2026-01-02T00:00:00Z", reviewed={"patched": 2}, refused=1)
    newer = row(
        "web", ["linux/arm64"], first_seen="2026-01-03T00:00:00Z", last_seen="2026-01-04T00:00:00Z",
        reviewed={"patched": 1, "impossible": 1}, refused=1,
    )  # fmt: skip
    both = merged(
        [
            observations(newer, since="2026-01-03T00:00:00Z", until="2026-01-05T00:00:00Z", left_out=2),
            observations(older, row("db", None)),
        ]
    )
    db, web = both.workloads
    assert (db.name, both.since, both.until, both.left_out) == (
        "db", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z", 2,
    )  # fmt: skip
    assert (web.reviewed, web.refused, web.platforms) == ({"patched": 3, "impossible": 1}, 2, ["linux/arm64"])
    assert (web.first_seen, web.last_seen) == ("2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z")


def test_words_that_no_node_has_are_no_error() -> None:
    """An image may state any platform."""
    given = observations(row("odd", ["nonsense", "linux/amd64"]))
    found = report(given, [pod("odd", "arm")], [node("arm", "arm64"), node("amd", "amd64")])
    assert found.moved == {"linux/arm64": 1}
