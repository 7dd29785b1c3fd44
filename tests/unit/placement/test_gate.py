"""The gate: which pods are held at creation and which are let through, and the one patch that lets a held pod go."""

import json
from typing import Any

import msgspec
import pytest

from extender.images.content import RETRYABLE, Cause
from extender.placement.annotations import ADDED, MODE, REASON, UNKNOWN
from extender.placement.facts import ImageFact, Pending, Unknown
from extender.placement.gate import GATE, GATED, GATED_LABEL, PROBE_LABEL, AfterGate, encode_ungating
from extender.placement.mutation import AdmissionOutcome
from extender.placement.planning import AdmissionSettings, Outcome
from tests.builders import AMD64, ARCH, ARM64, MULTI, PREFERRED, REQUIRED, Json, pod, with_terms
from tests.unit.placement.held_pods import OTHERS, OURS, held, patch_of, release
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import (
    ARM_TOLERATION,
    BOTH_TOLERATION,
    COLD,
    DENIED,
    NEVER_PULLED,
    after,
    mutate,
    settings,
    terms_of,
)
from tests.unit.placement.terms import IN_AMD64, IN_ARM64, IN_BOTH, LINUX, NO_NODE, ZONE, matching

HOLDING = settings("required", unknown="gate")
COLD_TEXT = "image app-0:1 is not known yet (looking-up: its lookup has not ended yet)"
HELD = f"{COLD_TEXT}; the pod is held until it is known"
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
    admission = settings("required", "multiarch", unknown="gate")
    for fact in MAY_END:
        mutation = mutate(document, fact, AMD64, admission=admission, may_hold=True)
        assert mutation.outcome is AdmissionOutcome.GATED
        patched = apply(document, mutation.patch)
        assert gates_of(patched) == ([OTHERS, OURS] if gates not in (..., None) and OTHERS in gates else [OURS])
        assert patched["metadata"]["labels"] == {**(labels if isinstance(labels, dict) else {}), GATED_LABEL: GATED}
        assert patched["metadata"]["annotations"][REASON].startswith("image app-0:1 is ")
        assert "affinity" not in patched["spec"]
        assert patched["spec"]["schedulerName"] == "multiarch"  # which cannot be given later
        assert ADDED in patched["metadata"]["annotations"]
        assert mutate(patched, fact, AMD64, admission=admission, may_hold=True).patch == b""


@pytest.mark.parametrize("then", ["pass", "assume"])
def test_image_that_waiting_cannot_make_known_holds_no_pod(then: str) -> None:
    """What follows the gate's limit is done at once; an image that is never pulled needs no word."""
    admission = settings("required", unknown="gate", after_gate=then)
    outcomes = {"pass": AdmissionOutcome.UNRESOLVED, "assume": AdmissionOutcome.ASSUMED}
    for cause in (Cause.INVALID_REFERENCE, Cause.NOT_ALLOWED, Cause.ARTIFACT, Cause.UNSUPPORTED, Cause.INVALID):
        mutation = mutate(pod(), Unknown(cause, "x"), admission=admission, may_hold=True)
        assert mutation.outcome is outcomes[then]
    mutation = mutate(pod(), NEVER_PULLED, admission=admission, may_hold=True)
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.UNCHANGED, b"")


@pytest.mark.parametrize(
    ("document", "gates", "reason"),
    [(pod(), [], f"{COLD_TEXT}; the pod was let through without it, as nobody is there to remove its gate later"),
     (gated(), [OURS], HELD)],
    ids=["new", "held by a policy"],
)  # fmt: skip
def test_pod_passes_while_nobody_lets_pods_go(document: Any, gates: list[Any], reason: str) -> None:
    """It would be held for ever; but a policy's author wants it to wait."""
    patched = after(document, COLD, admission=HOLDING, may_hold=False)
    assert (gates_of(patched), patched["metadata"]["annotations"][REASON]) == (gates, reason)


@pytest.mark.parametrize("gates", [[OURS], [OURS, OTHERS], [OTHERS, OURS]])
def test_gate_of_a_policy_is_lifted_when_all_is_known(gates: list[Any]) -> None:
    """In the same request, with the affinity; the gates of others and other labels stay."""
    document = gated()
    document["spec"]["schedulingGates"] = gates
    patched = after(document, AMD64, admission=HOLDING)
    assert gates_of(patched) == [gate for gate in gates if gate == OTHERS]
    assert patched["metadata"]["labels"] == {"app": "a"}
    assert terms_of(patched) == [matching(IN_AMD64, LINUX)]


@pytest.mark.parametrize("fact", [AMD64, COLD, NEVER_PULLED], ids=["known", "pending", "never known"])
@pytest.mark.parametrize("unknown", ["pass", "gate", "assume"])
def test_gate_of_a_policy_stays_on_a_dry_run_that_is_to_show_it(fact: ImageFact, unknown: str) -> None:
    """Whatever the operator says of its image."""
    probe = gated()
    probe["metadata"]["labels"][PROBE_LABEL] = "true"
    patched = after(probe, fact, admission=settings("required", unknown=unknown))
    assert (gates_of(patched), label_of(patched)) == ([OURS], GATED)


def test_unknown_sidecar_of_a_later_webhook_holds_the_pod_again() -> None:
    """What the earlier pass wrote is taken back, and written anew when the sidecar is known."""
    patched = after(gated(), AMD64, admission=HOLDING)
    assert gates_of(patched) == []
    patched["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    again = after(patched, AMD64, COLD, admission=HOLDING, may_hold=True)
    assert gates_of(again) == [OURS]
    assert label_of(again) == GATED
    assert "affinity" not in again["spec"]
    known = after(again, AMD64, MULTI, admission=HOLDING)
    assert (gates_of(known), label_of(known)) == ([], None)
    assert terms_of(known) == [matching(IN_AMD64, LINUX)]


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
    """No toleration and no preference, which are for what is known; nothing where no affinity is written."""
    admission = settings("both", unknown="assume")
    patched = after(pod(2), MULTI, COLD, admission=admission)
    assert patched["spec"]["affinity"] == with_terms(matching(IN_AMD64, LINUX))
    assert "tolerations" not in patched["spec"]
    assert patched["metadata"]["annotations"][REASON] == (
        "image app-1:1 is not known yet and is taken to run only on linux/amd64 (operator's setting)"
    )
    assert mutate(patched, MULTI, COLD, admission=admission).patch == b""
    unwritten = mutate(pod(), COLD, admission=settings("preferred", unknown="assume"))
    assert unwritten.outcome is AdmissionOutcome.UNRESOLVED


@pytest.mark.parametrize("impossible", ["pend", "deny"])
def test_assumption_makes_no_pod_impossible(impossible: str) -> None:
    """It may be wrong, and node affinity is for ever: the pod goes by its known images and its author's words."""
    admission = settings("required", unknown="assume", impossible=impossible)
    beside_arm = mutate(pod(2), ARM64, COLD, admission=admission)
    assert beside_arm.outcome is AdmissionOutcome.UNRESOLVED
    patched = after(pod(2), ARM64, COLD, admission=admission)
    assert patched["spec"]["affinity"] == with_terms(matching(IN_ARM64, LINUX))
    assert patched["metadata"]["annotations"][REASON].startswith("image app-1:1 is not known yet (looking-up")
    chosen = pod(nodeSelector={ARCH: "arm64"})
    assert mutate(chosen, COLD, admission=admission).outcome is AdmissionOutcome.UNRESOLVED
    assert "affinity" not in after(chosen, COLD, admission=admission)["spec"]


@pytest.mark.parametrize("mode", ["observe", "ignore"])
def test_pod_that_is_not_enforced_is_never_held(mode: str) -> None:
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
    for admission, own, expected in (
        (HOLDING, {}, AdmissionOutcome.GATED),
        (exempting, {}, AdmissionOutcome.ASSUMED),
        (exempting, {UNKNOWN: "pass"}, AdmissionOutcome.UNRESOLVED),
    ):
        document = pod(metadata={"annotations": own}, priorityClassName="mine")
        assert mutate(document, COLD, admission=admission, may_hold=True).outcome is expected


OWN = with_terms({}, matching(ZONE))
LETTING_GO = [{"$patch": "delete", "name": GATE}]


def test_patch_lets_go_of_a_known_pod_in_one_request() -> None:
    """It names uid and version, takes off gate and label, and has whole lists, as the API server replaces them."""
    own = {"key": "tenant", "operator": "Exists"}
    found = release(held(tolerations=[own]), MULTI)
    assert found.outcome is Outcome.KNOWN
    metadata, spec = (patch_of(found)[part] for part in ("metadata", "spec"))
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u1", "7")
    assert metadata["labels"] == {GATED_LABEL: None}
    assert metadata["annotations"][REASON] == found.reason
    assert ADDED in metadata["annotations"]
    required = {"nodeSelectorTerms": [matching(IN_BOTH, LINUX)]}
    preferred = [{"weight": 100, "preference": matching(IN_ARM64)}]
    assert spec == {
        "schedulingGates": LETTING_GO,
        "tolerations": [own, BOTH_TOLERATION, ARM_TOLERATION],
        "affinity": {"nodeAffinity": {REQUIRED: required, PREFERRED: preferred}},
    }


def test_pod_stays_held_for_an_image_that_is_not_known() -> None:
    """Nothing is sent, unless its author does not want it held."""
    found = release(held(2), AMD64, COLD)
    assert (found.outcome, found.patch) == (Outcome.HOLD, b"")
    assert found.reason.startswith("image app-1:1 is not known yet (looking-up")
    assert release(held(annotations={UNKNOWN: "pass"}), COLD).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("then", "outcome", "term"),
    [
        ("pass", Outcome.PASSED, matching(IN_BOTH, LINUX)),
        ("assume", Outcome.ASSUMED, matching(IN_AMD64, LINUX)),
    ],
)
def test_expired_pod_is_let_go_as_the_operator_wants(then: str, outcome: Outcome, term: Json) -> None:
    admission = settings("required", rules=(), unknown="gate", after_gate=then)
    found = release(held(2), MULTI, COLD, expired=True, admission=admission)
    assert (found.outcome, terms_of(patch_of(found))) == (outcome, [term])
    assert ("let through without it, as it was held for long enough" in found.reason) is (then == "pass")
    assert patch_of(found)["metadata"]["annotations"][REASON] == found.reason


@pytest.mark.parametrize(
    ("mode", "impossible"),
    [("required", "pend"), ("required", "deny"), ("both", "deny"), ("none", "deny"), ("preferred", "deny")],
)
def test_impossible_pod_is_let_go_to_wait_with_its_reason(mode: str, impossible: str) -> None:
    """At once, even if other images are not known. It exists, so it cannot be denied, whatever is written otherwise."""
    admission = settings(mode, unknown="gate", impossible=impossible)
    for own, terms in ((None, [matching(NO_NODE)]), (OWN, [{}, matching(ZONE, NO_NODE)])):
        found = release(held(3, affinity=own), AMD64, ARM64, COLD, admission=admission)
        assert (found.outcome, terms_of(patch_of(found))) == (Outcome.IMPOSSIBLE, terms)
        assert found.reason.startswith("no platform is common to all images: ")


def test_pods_of_one_template_get_one_patch() -> None:
    one, other = release(held(uid="a"), MULTI), release(held(uid="b"), MULTI)
    assert one.patch.replace(b'"uid":"a"', b'"uid":"b"') == other.patch


@pytest.mark.parametrize("mode", ["observe", "ignore"])
def test_pod_that_is_not_enforced_is_let_go_alone(mode: str) -> None:
    """At once, with nothing added, and without the reason that the policy has written."""
    found = release(held(annotations={REASON: "held"}), COLD, namespace={MODE: mode})
    assert found.outcome is (Outcome.OBSERVED if mode == "observe" else Outcome.EXEMPT)
    gone = {"annotations": {REASON: None}, "labels": {GATED_LABEL: None}}
    assert patch_of(found) == {
        "metadata": {"uid": "u1", "resourceVersion": "7", **gone},
        "spec": {"schedulingGates": LETTING_GO},
    }


def test_annotations_of_the_hold_are_replaced_or_taken_off() -> None:
    """A pod that gets nothing keeps no reason to wait."""
    found = release(held(annotations={REASON: "held", ADDED: "{}"}), MULTI, admission=settings("none", rules=()))
    assert patch_of(found)["metadata"]["annotations"] == {REASON: None, ADDED: None}


@pytest.mark.parametrize("admission", [HOLDING, settings("none", rules=())])
def test_the_record_keeps_what_the_webhook_wrote_when_it_held_the_pod(admission: AdmissionSettings) -> None:
    """Else a manifest that names no scheduler could not be applied again: nobody would know what to put back."""
    at_creation = {"schedulerNameWas": "missing"}
    stored = held(annotations={ADDED: json.dumps(at_creation)}, schedulerName="multiarch-scheduler")
    record = json.loads(patch_of(release(stored, MULTI, admission=admission))["metadata"]["annotations"][ADDED])
    assert record["schedulerNameWas"] == "missing"


def test_what_ungates_a_pod_takes_off_gate_label_and_reason_alone() -> None:
    assert msgspec.json.decode(encode_ungating("u1")) == {
        "metadata": {"uid": "u1", "annotations": {REASON: None}, "labels": {GATED_LABEL: None}},
        "spec": {"schedulingGates": LETTING_GO},
    }
