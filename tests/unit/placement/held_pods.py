"""Pods that a gate holds, what takes the gate off, and what an API server makes of that and allows."""

from typing import Any

import msgspec

from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.annotations import read_overrides
from extender.placement.facts import ImageFact, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.ungating import Ungating, UngatingPlanner
from tests.builders import REQUIRED, created, pod
from tests.unit.placement.mutating import POLICY, settings

OURS, OTHERS = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}
HOLDING = settings("both", unknown="gate")


def held(images: int = 1, annotations: dict[str, str] | None = None, uid: str = "u1", **spec: Any) -> CreatedPod:
    labels = {"app": "a", GATED_LABEL: GATED}
    metadata = {"name": "p", "uid": uid, "resourceVersion": "7", "labels": labels, "annotations": annotations or {}}
    return created(pod(images, metadata=metadata, schedulingGates=[OURS], **spec))


def release(
    stored: CreatedPod,
    *facts: ImageFact,
    expired: bool = False,
    admission: AdmissionSettings = HOLDING,
    namespace: dict[str, str] | None = None,
    cluster: ClusterNodes = NO_NODES,
) -> Ungating:
    overrides = read_overrides(stored.annotations, namespace)
    planner, images = UngatingPlanner(POLICY, admission), images_of(stored)
    return planner.plan(ResolvedPod(stored, images, facts, overrides, cluster), expired=expired)


def patch_of(found: Ungating) -> Any:
    return msgspec.json.decode(found.patch)


def merged(stored: Any, patch: Any) -> Any:
    """The stored pod after a strategic merge patch: maps merge, gates merge by name, all other lists are replaced."""
    result = dict(stored)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif key == "schedulingGates":
            gone = [gate["name"] for gate in value if gate.get("$patch") == "delete"]
            assert len(gone) == len(value)
            result[key] = [gate for gate in result[key] if gate["name"] not in gone]
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


def terms_of(document: Any) -> list[Any] | None:
    affinity = (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return affinity[REQUIRED]["nodeSelectorTerms"] if REQUIRED in affinity else None


def check_allowed(before: Any, after: Any) -> None:
    spec, changed = before["spec"], after["spec"]
    assert changed["schedulingGates"] == [gate for gate in spec["schedulingGates"] if gate["name"] != GATE]
    assert changed.get("nodeSelector") == spec.get("nodeSelector")
    assert changed["containers"] == spec["containers"]
    assert changed["schedulerName"] == spec["schedulerName"]
    tolerations = changed.get("tolerations") or []
    assert all(toleration in tolerations for toleration in spec.get("tolerations") or [])
    own, affinity = spec.get("affinity") or {}, changed.get("affinity") or {}
    assert affinity.get("podAntiAffinity") == own.get("podAntiAffinity")
    terms, now = terms_of(before), terms_of(after)
    assert now is None or now
    if terms is None:
        assert all(term.get("matchExpressions") for term in now or [])
        return
    assert now is not None
    assert len(now) == len(terms)
    for term, later in zip(terms, now, strict=True):
        expressions = term.get("matchExpressions") or []
        if not expressions and not term.get("matchFields"):
            assert later == term
        assert later.get("matchFields") == term.get("matchFields")
        assert (later.get("matchExpressions") or [])[: len(expressions)] == expressions
        assert all(item["operator"] != "In" or item["values"] for item in later.get("matchExpressions") or [])
