"""Replicas on both architectures: which constraints a pod gets, by which labels, and that they can be taken back."""

from typing import Any

import pytest

from extender.placement.facts import RunsOn
from extender.placement.policy import SPREAD
from tests.builders import AMD64, MULTI, PREFERRED, pod
from tests.unit.placement.mutating import after, mutate, record_of, settings

HASH, JOB = {"pod-template-hash": "5d4f8c7b9"}, {"batch.kubernetes.io/controller-uid": "u"}
ARCH, HOST, ZONE = "kubernetes.io/arch", "kubernetes.io/hostname", "topology.kubernetes.io/zone"
OWN_ZONE = {"maxSkew": 2, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
NONE = settings("none", rules=())
ON_ARCHITECTURES = {**OWN_ZONE, "topologyKey": ARCH}


def replica(labels: dict[str, str] | None = None, kind: str = "ReplicaSet", spread: str = "true", **spec: Any) -> Any:
    metadata: dict[str, Any] = {"annotations": {SPREAD: spread}, "labels": HASH if labels is None else labels}
    if kind:
        metadata["ownerReferences"] = [{"kind": kind, "name": "web", "controller": True}]
    return pod(metadata=metadata, **spec)


def weighed(key: str, skew: int, labels: dict[str, str], **more: str) -> dict[str, Any]:
    selector = {"matchLabels": labels}
    return {
        "maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector, **more
    }  # fmt: skip


def by_architecture(labels: dict[str, str]) -> dict[str, Any]:
    return weighed(ARCH, 1, labels, nodeTaintsPolicy="Honor")


def constraints_of(document: Any) -> Any:
    return document["spec"].get("topologySpreadConstraints", [])


SELECTED = {
    "ReplicaSet": ({"app": "web", **HASH}, HASH),
    "StatefulSet": (
        {"app": "db", "controller-revision-hash": "db-1", "apps.kubernetes.io/pod-index": "3"},
        {"controller-revision-hash": "db-1"},
    ),
    "Job": ({**JOB, "controller-uid": "u", "job-name": "j"}, JOB),
    "another": ({"b": "2", "a": "1", "statefulset.kubernetes.io/pod-name": "x-0"}, {"a": "1", "b": "2"}),
}


@pytest.mark.parametrize(("labels", "selected"), SELECTED.values(), ids=SELECTED)
def test_replicas_are_selected_by_what_they_share(labels: dict[str, str], selected: dict[str, str]) -> None:
    """And the pod gets kube-scheduler's own constraint for hosts, which it would lose by having one."""
    patched = after(replica(labels), MULTI, admission=NONE)
    expected = [by_architecture(selected), weighed(HOST, 3, selected)]
    assert constraints_of(patched) == expected
    assert mutate(patched, MULTI, admission=NONE).patch == b""
    assert record_of(patched)["spread"] == expected


@pytest.mark.parametrize(
    ("document", "fact", "expected"),
    [
        (replica(topologySpreadConstraints=[OWN_ZONE]), MULTI, [OWN_ZONE, by_architecture(HASH)]),
        (replica(topologySpreadConstraints=[ON_ARCHITECTURES]), MULTI, [ON_ARCHITECTURES]),
        (replica(spread="false"), MULTI, []),
        (replica(kind=""), MULTI, []),
        (replica({}), MULTI, []),
        (replica(), AMD64, []),
    ],
    ids=["on zones", "on architectures", "switched off", "no controller", "no label", "one architecture"],
)
def test_what_the_pod_has_stays(document: Any, fact: RunsOn, expected: Any) -> None:
    """A constraint of its own on architectures is its author's word, and without need there is none."""
    assert constraints_of(after(document, fact, admission=NONE)) == expected


def test_a_pod_that_is_spread_has_no_preference() -> None:
    """Which would outvote the constraint."""
    patched = after(replica(), MULTI, admission=settings("both"))
    assert PREFERRED not in str(patched["spec"].get("affinity"))
    assert constraints_of(patched)


def test_constraints_are_taken_back_when_a_sidecar_leaves_one_architecture() -> None:
    patched = after(replica(images=1), MULTI, admission=NONE)
    patched["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    assert "topologySpreadConstraints" not in after(patched, MULTI, AMD64, admission=NONE)["spec"]
    patched["spec"]["topologySpreadConstraints"].append(OWN_ZONE)
    assert constraints_of(after(patched, MULTI, AMD64, admission=NONE)) == [OWN_ZONE]
