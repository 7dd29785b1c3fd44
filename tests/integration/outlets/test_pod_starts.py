"""Starts, restarts and crash loops of counted pods: which workload they count for, when, and how many at most."""

import json
from typing import Any

import msgspec
import pytest

from extender.budgets import Budget
from extender.kubernetes.reported_v1 import CountedPod
from extender.metrics import Count
from extender.outlets import pod_starts
from extender.outlets.pod_starts import CRASH_LOOPS, OTHER, RESTARTS, STARTS, PodStarts, workload_of

Document = dict[str, Any]
NODES = {"a": "amd64", "b": "arm64"}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> PodStarts:
    """A handler whose first list had no pods; the metrics are empty before and after."""
    for name in ("STARTS", "RESTARTS", "CRASH_LOOPS"):
        getattr(pod_starts, name).clear()
    made = PodStarts(lambda name: NODES.get(name, OTHER))
    made.keep_only(set())
    return made


def pod(name: str = "web-0", node: str = "a", phase: str = "Running", restarts: int = 0, **more: Any) -> Document:
    """A pod of the StatefulSet web; `loops=True` makes its container wait for a restart."""
    state = {"waiting": {"reason": "CrashLoopBackOff"}} if more.get("loops") else {"running": {}}
    owner = {"kind": "StatefulSet", "name": more.get("owner", "web"), "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": more.get("namespace", "shop"),
            "uid": more.get("uid", f"uid-{name}"),
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": [{"name": "c", "restartCount": restarts, "state": state}]},
    }


def show(starts: PodStarts, *pods: Document) -> None:
    """Has the handler see these states."""
    for each in pods:
        starts.upsert(msgspec.Raw(json.dumps(each).encode()))


def counted(rows: dict[tuple[str, ...], Count]) -> dict[tuple[str, ...], float]:
    """The counts above zero."""
    return {labels: count.value for labels, count in rows.items() if count.value}


def test_a_pod_counts_once_for_its_start_and_for_each_restart(starts: PodStarts) -> None:
    """By the architecture of its node, and not again when the same state is told twice."""
    show(starts, pod(node="", phase="Pending"), pod(phase="Pending"), pod(), pod(restarts=1), pod(restarts=1))
    show(starts, pod(restarts=2), pod("web-1", "b"))
    assert counted(STARTS) == {("shop/web", "amd64"): 1, ("shop/web", "arm64"): 1}
    assert counted(RESTARTS) == {("shop/web", "amd64"): 2}
    assert counted(CRASH_LOOPS) == {}
    assert ("shop/web", "amd64") in CRASH_LOOPS  # at zero, so that a rate can be taken from the first one on


def test_a_pod_that_the_kubelet_refused_has_not_started(starts: PodStarts) -> None:
    """It has failed and has run nothing; one that ran and failed has started."""
    refused, failed = pod("web-1", phase="Failed"), pod(phase="Failed")
    del refused["status"]["containerStatuses"]
    failed["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
    show(starts, refused)
    assert counted(STARTS) == {}
    show(starts, failed)
    assert counted(STARTS) == {("shop/web", "amd64"): 1}


def test_a_pod_counts_as_a_crash_loop_once(starts: PodStarts) -> None:
    """However often it leaves it and comes back."""
    show(starts, pod(restarts=1, loops=True), pod(restarts=2), pod(restarts=2, loops=True))
    assert counted(CRASH_LOOPS) == {("shop/web", "amd64"): 1}


def test_what_happened_before_the_first_list_is_not_counted() -> None:
    """A replica that starts does not make a rise of its own; what comes later counts."""
    starts = PodStarts(lambda name: NODES[name])
    for rows in (STARTS, RESTARTS, CRASH_LOOPS):
        rows.clear()
    show(starts, pod(restarts=7, loops=True))
    starts.keep_only({"shop/web-0"})
    assert counted(STARTS) == counted(RESTARTS) == counted(CRASH_LOOPS) == {}
    show(starts, pod(restarts=8))
    assert counted(RESTARTS) == {("shop/web", "amd64"): 1}


def test_a_replacement_of_the_same_name_counts_as_new(starts: PodStarts) -> None:
    """Also where nobody told that the first one has gone."""
    show(starts, pod(restarts=3), pod(uid="another", restarts=1))
    assert counted(STARTS) == {("shop/web", "amd64"): 2}
    assert counted(RESTARTS) == {("shop/web", "amd64"): 4}


def test_a_workload_without_pods_has_no_series(starts: PodStarts) -> None:
    """Whether its last pod was deleted, or was missing from a list."""
    show(starts, pod(), pod("web-1", "b"), pod("db-0", owner="db"))
    starts.delete("shop/web-0")
    assert ("shop/web", "amd64") in STARTS
    starts.delete("shop/web-1")
    starts.delete("shop/never")
    assert {labels[0] for labels in STARTS} == {"shop/db"}
    starts.keep_only(set())
    assert STARTS == RESTARTS == CRASH_LOOPS == {}


def test_one_namespace_takes_half_of_the_series_at_most(starts: PodStarts) -> None:
    """Its further workloads count together; another namespace still has series of its own."""
    show(starts, *(pod(f"w{number}-0", owner=f"w{number}") for number in range(70)))
    assert len({labels[0] for labels in STARTS} - {OTHER}) == 50
    assert counted(STARTS)[OTHER, "amd64"] == 20
    show(starts, pod(namespace="other"))
    assert counted(STARTS)["other/web", "amd64"] == 1


def test_pods_beyond_the_budget_are_not_kept(starts: PodStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count nothing, until one that is kept has gone."""
    starts._pod_budget = Budget(pod_starts._PODS, total=2)  # noqa: SLF001
    show(starts, pod(), pod("web-1"), pod("web-2"))
    assert counted(STARTS) == {("shop/web", "amd64"): 1}
    starts.delete("shop/web-0")
    show(starts, pod("web-2"))
    assert len(starts._pods) == 1  # noqa: SLF001


@pytest.mark.parametrize(
    ("metadata", "workload"),
    [
        (
            {
                "name": "web-5d4f8c7b9f-abcde",
                "labels": {"pod-template-hash": "5d4f8c7b9f"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d4f8c7b9f", "controller": True}],
            },
            "web",
        ),
        ({"name": "r-1", "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}]}, "r"),
        (
            {"name": "j-1", "ownerReferences": [{"kind": "Job", "name": "nightly-29364480", "controller": True}]},
            "nightly",
        ),
        ({"name": "j-1", "ownerReferences": [{"kind": "Job", "name": "once", "controller": True}]}, "once"),
        ({"name": "w-0", "ownerReferences": [{"kind": "Workflow", "name": "w"}]}, "w-0"),
        ({"name": "alone"}, "alone"),
    ],
    ids=["deployment", "replica-set", "cron-job", "job", "no-controller", "alone"],
)
def test_a_pod_counts_for_the_workload_that_people_know(metadata: Document, workload: str) -> None:
    """The names that change with each rollout or run are cut off."""
    assert workload_of(msgspec.convert({"metadata": metadata}, CountedPod)) == workload
