"""The gate at creation: who is held, who is let go in the same request, and what happens to those let through."""

from typing import Any

import msgspec
import pytest

from extender.images.content import RETRYABLE, Cause
from extender.placement.facts import ImageFact, Pending, Unknown
from extender.placement.gate import GATE, GATED, GATED_LABEL, AfterGate
from extender.placement.mutation import AdmissionOutcome
from extender.placement.policy import ADDED, MODE, REASON, UNKNOWN
from tests.builders import AMD64, ARCH, MULTI, OS, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import after, mutate, settings

HOLDING = settings("required", unknown="gate")
COLD = Pending(Cause.LOOKING_UP, "its lookup has not ended yet")
DENIED = Unknown(Cause.DENIED, "x")
OURS, OTHERS = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}
HELD = "image app-0:1 is not known yet (looking-up: its lookup has not ended yet); the pod is held until it is known"
MAY_END: list[ImageFact] = [*(Pending(cause, "x") for cause in sorted(RETRYABLE)), DENIED]
OF_DAEMON_SET = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}


def gates_of(document: Any) -> list[Any]:
    return document["spec"].get("schedulingGates") or []


def label_of(document: Any) -> Any:
    return (document["metadata"].get("labels") or {}).get(GATED_LABEL)


def gated(**spec: Any) -> dict[str, Any]:
    return pod(metadata={"labels": {"app": "a", GATED_LABEL: GATED}}, schedulingGates=[OURS], **spec)


@pytest.mark.parametrize(
    ("labels", "gates"),
    [(..., ...), (None, None), ({}, []), ({"app": "a"}, [OTHERS]), (..., [OURS]), ({"app": "a"}, [OTHERS, OURS])],
    ids=["missing", "null", "empty", "of others", "gated by a policy", "by several"],
)
def test_pod_of_an_image_that_may_become_known_is_held(labels: Any, gates: Any) -> None:
    """It gets gate, label and reason, and no affinity that would have to be narrowed later."""
    document = pod(2)
    if labels is not ...:
        document["metadata"]["labels"] = labels
    if gates is not ...:
        document["spec"]["schedulingGates"] = gates
    for fact in MAY_END:
        mutation = mutate(document, fact, AMD64, admission=HOLDING, may_hold=True)
        assert mutation.outcome is AdmissionOutcome.GATED
        patched = apply(document, mutation.patch)
        assert gates_of(patched) == ([OTHERS, OURS] if gates not in (..., None) and OTHERS in gates else [OURS])
        assert patched["metadata"]["labels"] == {**(labels if isinstance(labels, dict) else {}), GATED_LABEL: GATED}
        assert patched["metadata"]["annotations"][REASON].startswith("image app-0:1 is ")
        assert "affinity" not in patched["spec"]
        assert mutate(patched, fact, AMD64, admission=HOLDING, may_hold=True).patch == b""


@pytest.mark.parametrize("then", ["pass", "assume"])
def test_image_that_waiting_cannot_make_known_holds_no_pod(then: str) -> None:
    """What follows the gate's limit is done at once; an image that is never pulled needs no word."""
    admission = settings("required", unknown="gate", after_gate=then)
    outcomes = {"pass": AdmissionOutcome.UNRESOLVED, "assume": AdmissionOutcome.ASSUMED}
    for cause in (Cause.INVALID_REFERENCE, Cause.NOT_ALLOWED, Cause.ARTIFACT, Cause.UNSUPPORTED, Cause.INVALID):
        mutation = mutate(pod(), Unknown(cause, "x"), admission=admission, may_hold=True)
        assert mutation.outcome is outcomes[then]
    mutation = mutate(pod(), Unknown(Cause.NEVER_PULLED, "x"), admission=admission, may_hold=True)
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.UNCHANGED, b"")


def test_pod_passes_with_a_reason_while_nobody_lets_pods_go() -> None:
    """A pod that nobody lets go would be held for ever."""
    mutation = mutate(pod(), COLD, admission=HOLDING, may_hold=False)
    assert mutation.outcome is AdmissionOutcome.UNRESOLVED
    patched = after(pod(), COLD, admission=HOLDING, may_hold=False)
    assert gates_of(patched) == []
    assert patched["metadata"]["annotations"][REASON] == (
        "image app-0:1 is not known yet (looking-up: its lookup has not ended yet); the pod was let through without "
        "it, as nobody is there to remove its gate later"
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
    ("annotation", "outcomes"),
    [
        (None, {"pass": "unresolved", "gate": "gated", "assume": "assumed"}),
        ("pass", {"gate": "unresolved", "assume": "unresolved"}),
        ("assume", {"pass": "assumed", "gate": "assumed"}),
        ("retry", {"pass": "unresolved", "gate": "gated", "assume": "assumed"}),
    ],
)
def test_annotation_overrides_the_setting(annotation: str | None, outcomes: dict[str, str]) -> None:
    """The pod's or its namespace's. `retry` holds the pod where the operator runs gates, and nowhere else."""
    own = {UNKNOWN: annotation} if annotation else {}
    for setting, expected in outcomes.items():
        for document, namespace in ((pod(metadata={"annotations": own}), {}), (pod(), own)):
            admission = settings("required", unknown=setting)
            found = mutate(document, COLD, admission=admission, namespace=namespace, may_hold=True)
            assert found.outcome is AdmissionOutcome(expected)


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


@pytest.mark.parametrize("mode", ["observe", "ignore"])
def test_pod_that_is_not_enforced_is_never_held(mode: str) -> None:
    """An observed one records that it would be."""
    mutation = mutate(pod(), COLD, admission=HOLDING, namespace={MODE: mode}, may_hold=True)
    assert mutation.patch == b""
    assert mutation.audit_annotations.get("would-hold") == (HELD if mode == "observe" else None)


@pytest.mark.parametrize(
    ("spec", "metadata", "namespace"),
    [
        ({"runtimeClassName": "wasm"}, {}, {}),
        ({}, OF_DAEMON_SET, {}),
        ({}, {}, {MODE: "observe"}),
        ({}, {}, {MODE: "ignore"}),
    ],
    ids=["exempt", "of a DaemonSet", "observed", "ignored"],
)
def test_gate_of_a_policy_that_does_not_know_better_is_taken_off(
    spec: dict[str, Any], metadata: dict[str, Any], namespace: dict[str, str]
) -> None:
    """With label and reason, as the pod would say for ever that it is held, and nothing else."""
    own = {"annotations": {"team": "a"}, "labels": {"app": "a"}, **metadata}
    labels, notes = {**own["labels"], GATED_LABEL: GATED}, {**own["annotations"], REASON: "the pod is held"}
    document = pod(metadata={**own, "labels": labels, "annotations": notes}, schedulingGates=[OURS], **spec)
    patched = after(document, COLD, admission=HOLDING, namespace=namespace, may_hold=True)
    assert patched == pod(metadata=own, **spec)


def test_scheduler_name_is_given_to_held_pods() -> None:
    """It cannot be given later."""
    admission = settings("required", "multiarch", unknown="gate")
    patched = after(pod(), COLD, admission=admission, may_hold=True)
    assert patched["spec"]["schedulerName"] == "multiarch"
    assert ADDED in patched["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_critical_pod_is_not_held(name: str) -> None:
    """It goes by what is known of its other images; a policy's gate comes off too."""
    for document in (pod(priorityClassName=name), gated(priorityClassName=name)):
        mutation = mutate(document, COLD, admission=HOLDING, may_hold=True)
        assert mutation.outcome is AdmissionOutcome.UNRESOLVED
        assert gates_of(apply(document, mutation.patch)) == []


def test_pod_of_a_class_that_the_operator_exempts_is_not_held() -> None:
    """Beside the critical ones; its own annotation counts first."""
    gate = msgspec.structs.replace(HOLDING.gate, exempt_classes=frozenset({"mine"}), after=AfterGate.ASSUME)
    exempting = msgspec.structs.replace(HOLDING, gate=gate)
    plain = pod(priorityClassName="mine")
    annotated = pod(metadata={"annotations": {UNKNOWN: "pass"}}, priorityClassName="mine")
    for admission, document, expected in (
        (HOLDING, plain, AdmissionOutcome.GATED),
        (exempting, plain, AdmissionOutcome.ASSUMED),
        (exempting, annotated, AdmissionOutcome.UNRESOLVED),
    ):
        assert mutate(document, COLD, admission=admission, may_hold=True).outcome is expected
