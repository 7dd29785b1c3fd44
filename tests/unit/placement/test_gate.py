"""The gate at creation: who is held, who is let go in the same request, and what happens to those let through."""

import copy
from typing import Any

import msgspec
import pytest

from extender.images.content import RETRYABLE, Cause
from extender.placement.facts import ImageFact, Pending, Unknown
from extender.placement.gate import GATE, GATED, GATED_LABEL, AfterGate
from extender.placement.mutation import AdmissionOutcome
from extender.placement.policy import ADDED, MODE, REASON, UNKNOWN
from tests.builders import AMD64, ARCH, MULTI, OS, pod
from tests.unit.placement.mutating import after, mutate, settings

HOLDING = settings("required", unknown="gate")
COLD = Pending(Cause.LOOKING_UP, "its lookup has not ended yet")
DENIED = Unknown(Cause.DENIED, "x")
OURS, OTHERS = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}
HELD = "image app-0:1 is not known yet (looking-up: its lookup has not ended yet); the pod is held until it is known"


def gates_of(document: Any) -> list[Any]:
    return document["spec"].get("schedulingGates") or []


def label_of(document: Any) -> Any:
    return (document["metadata"].get("labels") or {}).get(GATED_LABEL)


def gated(**spec: Any) -> dict[str, Any]:
    return pod(metadata={"labels": {"app": "a", GATED_LABEL: GATED}}, schedulingGates=[OURS], **spec)


@pytest.mark.parametrize("fact", [*(Pending(cause, "x") for cause in sorted(RETRYABLE)), DENIED])
@pytest.mark.parametrize("labels", ["missing", None, {}, {"app": "a"}])
@pytest.mark.parametrize("gates", ["missing", None, [], [OTHERS], [OURS]])
def test_pod_of_an_image_that_may_become_known_is_held(fact: ImageFact, labels: Any, gates: Any) -> None:
    """It gets gate, label and reason, and no affinity that would have to be narrowed later."""
    document = pod(2)
    if labels != "missing":
        document["metadata"]["labels"] = labels
    if gates != "missing":
        document["spec"]["schedulingGates"] = gates
    mutation = mutate(document, fact, AMD64, admission=HOLDING, may_hold=True)
    assert mutation.outcome is AdmissionOutcome.GATED
    patched = after(document, fact, AMD64, admission=HOLDING, may_hold=True)
    others = [OTHERS] if gates == [OTHERS] else []
    assert gates_of(patched) == [*others, OURS]
    assert patched["metadata"]["labels"] == {**(labels if isinstance(labels, dict) else {}), GATED_LABEL: GATED}
    assert patched["metadata"]["annotations"][REASON].startswith("image app-0:1 is ")
    assert "affinity" not in patched["spec"]
    assert mutate(patched, fact, AMD64, admission=HOLDING, may_hold=True).patch == b""


def test_reason_of_a_held_pod_names_image_and_cause() -> None:
    """It is what `kubectl describe pod` shows."""
    patched = after(pod(), COLD, admission=HOLDING, may_hold=True)
    assert patched["metadata"]["annotations"][REASON] == HELD


@pytest.mark.parametrize(
    "cause", [Cause.INVALID_REFERENCE, Cause.NOT_ALLOWED, Cause.ARTIFACT, Cause.UNSUPPORTED, Cause.INVALID]
)
@pytest.mark.parametrize("then", ["pass", "assume"])
def test_image_that_waiting_cannot_make_known_holds_no_pod(cause: Cause, then: str) -> None:
    """What follows the gate's limit is done at once."""
    admission = settings("required", unknown="gate", after_gate=then)
    mutation = mutate(pod(), Unknown(cause, "x"), admission=admission, may_hold=True)
    outcomes = {"pass": AdmissionOutcome.UNRESOLVED, "assume": AdmissionOutcome.ASSUMED}
    assert mutation.outcome is outcomes[then]


def test_pod_passes_with_a_reason_while_nobody_lets_pods_go() -> None:
    """A pod that nobody lets go would be held for ever."""
    mutation = mutate(pod(), COLD, admission=HOLDING, may_hold=False)
    assert mutation.outcome is AdmissionOutcome.UNRESOLVED
    patched = after(pod(), COLD, admission=HOLDING, may_hold=False)
    assert gates_of(patched) == []
    assert patched["metadata"]["annotations"][REASON] == (
        "image app-0:1 is not known yet (looking-up: its lookup has not ended yet); the pod was let through without "
        "it, as nobody is there to let it go later"
    )


def test_pod_that_a_policy_holds_stays_held_while_nobody_lets_pods_go() -> None:
    """The policy's author wants it to wait."""
    patched = after(gated(), COLD, admission=HOLDING, may_hold=False)
    assert gates_of(patched) == [OURS]
    assert patched["metadata"]["annotations"][REASON] == HELD


@pytest.mark.parametrize("gates", [[OURS], [OURS, OTHERS], [OTHERS, OURS]])
def test_gate_of_a_policy_is_lifted_when_all_is_known(gates: list[Any]) -> None:
    """In the same request, with the affinity; the gates of others and other labels stay."""
    document = gated()
    document["spec"]["schedulingGates"] = gates
    patched = after(document, AMD64, admission=HOLDING)
    assert gates_of(patched) == [gate for gate in gates if gate == OTHERS]
    assert patched["metadata"]["labels"] == {"app": "a"}
    assert patched["spec"]["nodeSelector"] == {ARCH: "amd64", OS: "linux"}
    assert mutate(patched, AMD64, admission=HOLDING).patch == b""


def test_unknown_sidecar_of_a_later_webhook_holds_the_pod_again() -> None:
    """What the earlier pass wrote is taken back, and written anew when the sidecar is known."""
    patched = after(gated(), AMD64, admission=HOLDING)
    assert gates_of(patched) == []
    patched["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    again = after(patched, AMD64, COLD, admission=HOLDING, may_hold=True)
    assert gates_of(again) == [OURS]
    assert label_of(again) == GATED
    assert again["spec"].keys().isdisjoint({"affinity", "nodeSelector"})
    known = after(again, AMD64, MULTI, admission=HOLDING)
    assert (gates_of(known), label_of(known)) == ([], None)
    assert known["spec"]["nodeSelector"] == {ARCH: "amd64", OS: "linux"}


@pytest.mark.parametrize(
    ("annotation", "setting", "expected"),
    [
        (None, "pass", AdmissionOutcome.UNRESOLVED),
        (None, "gate", AdmissionOutcome.GATED),
        (None, "assume", AdmissionOutcome.ASSUMED),
        ("pass", "gate", AdmissionOutcome.UNRESOLVED),
        ("pass", "assume", AdmissionOutcome.UNRESOLVED),
        ("assume", "pass", AdmissionOutcome.ASSUMED),
        ("assume", "gate", AdmissionOutcome.ASSUMED),
        ("retry", "gate", AdmissionOutcome.GATED),
        ("retry", "pass", AdmissionOutcome.UNRESOLVED),
        ("retry", "assume", AdmissionOutcome.ASSUMED),
    ],
)
@pytest.mark.parametrize("owner", ["pod", "namespace"])
def test_annotation_overrides_the_setting(
    annotation: str | None, setting: str, expected: AdmissionOutcome, owner: str
) -> None:
    """`retry` holds the pod where the operator runs gates, and nowhere else."""
    annotations = {UNKNOWN: annotation} if annotation else {}
    document = pod(metadata={"annotations": annotations if owner == "pod" else {}})
    namespace = annotations if owner == "namespace" else {}
    admission = settings("required", unknown=setting)
    mutation = mutate(document, COLD, admission=admission, namespace=namespace, may_hold=True)
    assert mutation.outcome is expected


def test_assumed_image_gives_affinity_and_nothing_else() -> None:
    """No toleration and no preference, which are for what is known; the reason says that it is an assumption."""
    admission = settings("both", unknown="assume")
    patched = after(pod(2), MULTI, COLD, admission=admission)
    assert patched["spec"]["nodeSelector"] == {ARCH: "amd64", OS: "linux"}
    assert patched["spec"].keys().isdisjoint({"affinity", "tolerations"})
    assert patched["metadata"]["annotations"][REASON] == (
        "image app-1:1 is not known yet and is taken to run only on linux/amd64 (operator's setting)"
    )
    assert mutate(patched, MULTI, COLD, admission=admission).patch == b""


def test_nothing_is_assumed_without_required_affinity() -> None:
    """The pod is let through, which is counted."""
    mutation = mutate(pod(), COLD, admission=settings("preferred", unknown="assume"))
    assert mutation.outcome is AdmissionOutcome.UNRESOLVED


def test_image_that_is_never_pulled_holds_no_pod() -> None:
    """Only the node's copy counts, and it is not let through unresolved either."""
    mutation = mutate(pod(), Unknown(Cause.NEVER_PULLED, "x"), admission=HOLDING, may_hold=True)
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.UNCHANGED, b"")


@pytest.mark.parametrize("mode", ["observe", "ignore"])
def test_pod_that_is_not_enforced_is_never_held(mode: str) -> None:
    """A policy's gate is taken off, since the policy does not know the namespace's annotation."""
    namespace = {MODE: mode}
    assert mutate(pod(), COLD, admission=HOLDING, namespace=namespace, may_hold=True).patch == b""
    document = gated()
    patched = after(document, COLD, admission=HOLDING, namespace=namespace, may_hold=True)
    expected = copy.deepcopy(document)
    del expected["spec"]["schedulingGates"], expected["metadata"]["labels"][GATED_LABEL]
    assert patched == expected


def test_observed_pod_records_that_it_would_be_held() -> None:
    """In the audit annotations alone."""
    mutation = mutate(pod(), COLD, admission=HOLDING, namespace={MODE: "observe"}, may_hold=True)
    assert mutation.outcome is AdmissionOutcome.OBSERVED
    assert mutation.audit_annotations["would-hold"] == HELD


def test_daemon_sets_pod_is_never_held() -> None:
    """Even if a policy's condition was wrong."""
    owner = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}], "labels": {GATED_LABEL: GATED}}
    document = pod(metadata=owner, schedulingGates=[OURS])
    patched = after(document, COLD, admission=HOLDING, may_hold=True)
    assert (gates_of(patched), label_of(patched)) == ([], None)


@pytest.mark.parametrize(
    ("spec", "namespace"),
    [({"runtimeClassName": "wasm"}, {}), ({}, {MODE: "observe"}), ({}, {MODE: "ignore"})],
    ids=["exempt", "observed", "ignored"],
)
def test_reason_of_a_policy_goes_with_its_gate(spec: dict[str, Any], namespace: dict[str, str]) -> None:
    """The pod would say for ever that it is held, and its own annotations stay."""
    notes = {REASON: "not looked up yet; the pod is held", "team": "a"}
    metadata = {"labels": {GATED_LABEL: GATED}, "annotations": notes}
    patched = after(
        pod(metadata=metadata, schedulingGates=[OURS], **spec), COLD, admission=HOLDING, namespace=namespace
    )
    assert (gates_of(patched), label_of(patched)) == ([], None)
    assert patched["metadata"]["annotations"] == {"team": "a"}


def test_scheduler_name_is_given_to_held_pods() -> None:
    """It cannot be given later."""
    admission = settings("required", "multiarch", unknown="gate")
    patched = after(pod(), COLD, admission=admission, may_hold=True)
    assert patched["spec"]["schedulerName"] == "multiarch"
    assert ADDED in patched["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_critical_pod_is_not_held(name: str) -> None:
    """It goes by what is known of its other images; a policy's gate comes off too."""
    document = gated(priorityClassName=name)
    for before in (pod(priorityClassName=name), document):
        mutation = mutate(before, COLD, admission=HOLDING, may_hold=True)
        assert mutation.outcome is AdmissionOutcome.UNRESOLVED
        patched = after(before, COLD, admission=HOLDING, may_hold=True)
        assert gates_of(patched) == []
    assert mutate(pod(priorityClassName="mine"), COLD, admission=HOLDING, may_hold=True).outcome is (
        AdmissionOutcome.GATED
    )


def test_pod_of_a_class_that_the_operator_exempts_is_not_held() -> None:
    """Beside the critical ones; its own annotation counts first."""
    gate = msgspec.structs.replace(HOLDING.gate, exempt_classes=frozenset({"mine"}), after=AfterGate.ASSUME)
    admission = msgspec.structs.replace(HOLDING, gate=gate)
    plain, annotated = pod(priorityClassName="mine"), pod(priorityClassName="mine")
    annotated["metadata"]["annotations"] = {UNKNOWN: "pass"}
    assert mutate(plain, COLD, admission=admission, may_hold=True).outcome is AdmissionOutcome.ASSUMED
    assert mutate(annotated, COLD, admission=admission, may_hold=True).outcome is AdmissionOutcome.UNRESOLVED
