"""Held pods: who stays held, and the one patch that lets a pod go."""

from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import ImageFact, Pending, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL, encode_ungating
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, MODE, REASON, UNKNOWN, read_overrides
from extender.placement.ungating import Ungating, UngatingOutcome, UngatingPlanner
from tests.builders import AMD64, ARCH, ARM64, MULTI, OS, PREFERRED, REQUIRED, created, expression, pod
from tests.unit.placement.mutating import ARM_TOLERATION, BOTH_TOLERATION, POLICY, settings

HOLDING = settings("both", unknown="gate")
COLD = Pending(Cause.LOOKING_UP, "its lookup has not ended yet")
LINUX = expression(OS, "linux")
IN_AMD64 = expression(ARCH, "amd64")
IN_BOTH = expression(ARCH, "amd64", "arm64")
ZONE = expression("zone", "a")
NO_NODE = {"key": "multiarch-extender.io/no-common-platform", "operator": "Exists"}
LETTING_GO = [{"$patch": "delete", "name": GATE}]


def held(images: int = 1, annotations: dict[str, str] | None = None, uid: str = "u1", **spec: Any) -> CreatedPod:
    labels = {"app": "a", GATED_LABEL: GATED}
    metadata = {"name": "p", "uid": uid, "resourceVersion": "7", "labels": labels, "annotations": annotations or {}}
    return created(pod(images, metadata=metadata, schedulingGates=[{"name": GATE}], **spec))


def release(
    stored: CreatedPod,
    *facts: ImageFact,
    expired: bool = False,
    admission: AdmissionSettings = HOLDING,
    namespace: dict[str, str] | None = None,
) -> Ungating:
    overrides = read_overrides(stored.metadata.annotations if stored.metadata else None, namespace)
    return UngatingPlanner(POLICY, admission).plan(stored, images_of(stored), facts, overrides, expired=expired)


def patch_of(found: Ungating) -> Any:
    return msgspec.json.decode(found.patch)


def test_patch_lets_go_of_a_known_pod_in_one_request() -> None:
    """It names uid and version, takes off gate and label, and has whole lists, as the API server replaces them."""
    own = {"key": "tenant", "operator": "Exists"}
    found = release(held(tolerations=[own]), MULTI)
    assert found.outcome is UngatingOutcome.KNOWN
    patch = patch_of(found)
    assert patch["metadata"]["uid"] == "u1"
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["metadata"]["labels"] == {GATED_LABEL: None}
    assert patch["metadata"]["annotations"][REASON] == found.reason
    assert ADDED in patch["metadata"]["annotations"]
    assert patch["spec"] == {
        "schedulingGates": LETTING_GO,
        "tolerations": [own, BOTH_TOLERATION, ARM_TOLERATION],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [IN_BOTH, LINUX]}]},
                PREFERRED: [{"weight": 100, "preference": {"matchExpressions": [expression(ARCH, "arm64")]}}],
            }
        },
    }


def test_pod_stays_held_for_an_image_that_is_not_known() -> None:
    """Nothing is sent, unless its author does not want it held."""
    found = release(held(2), AMD64, COLD)
    assert (found.outcome, found.patch) == (UngatingOutcome.HOLD, b"")
    assert found.reason.startswith("image app-1:1 is not known yet (looking-up")
    assert release(held(annotations={UNKNOWN: "pass"}), COLD).outcome is UngatingOutcome.PASSED


@pytest.mark.parametrize("then", ["pass", "assume"])
def test_expired_pod_is_let_go_as_the_operator_wants(then: str) -> None:
    """By what is known of the other images, or by the assumption."""
    admission = settings("required", rules=(), unknown="gate", after_gate=then)
    found = release(held(2), MULTI, COLD, expired=True, admission=admission)
    patch = patch_of(found)
    terms = patch["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    if then == "pass":
        assert found.outcome is UngatingOutcome.PASSED
        assert terms == [{"matchExpressions": [IN_BOTH, LINUX]}]
        assert "let through without it, as it was held for long enough" in found.reason
    else:
        assert found.outcome is UngatingOutcome.ASSUMED
        assert terms == [{"matchExpressions": [IN_AMD64, LINUX]}]
    assert patch["metadata"]["annotations"][REASON] == found.reason


@pytest.mark.parametrize("impossible", ["pend", "deny"])
def test_impossible_pod_is_let_go_to_wait_with_its_reason(impossible: str) -> None:
    """At once, even if other images are not known. It exists, so it cannot be denied."""
    admission = settings("required", unknown="gate", impossible=impossible)
    found = release(held(3), AMD64, ARM64, COLD, admission=admission)
    assert found.outcome is UngatingOutcome.IMPOSSIBLE
    terms = patch_of(found)["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [NO_NODE]}]
    assert found.reason.startswith("no platform is common to all images: ")


def test_pods_of_one_template_get_one_patch() -> None:
    """Apart from uid and version."""
    one, other = release(held(uid="a"), MULTI), release(held(uid="b"), MULTI)
    assert one.patch.replace(b'"uid":"a"', b'"uid":"b"') == other.patch


@pytest.mark.parametrize("mode", ["observe", "ignore"])
def test_pod_that_is_not_enforced_is_let_go_alone(mode: str) -> None:
    """At once, with nothing added, and without the reason that the policy has written."""
    found = release(held(annotations={REASON: "held"}), COLD, namespace={MODE: mode})
    assert found.outcome is (UngatingOutcome.OBSERVED if mode == "observe" else UngatingOutcome.EXEMPT)
    gone = {"annotations": {REASON: None}, "labels": {GATED_LABEL: None}}
    assert patch_of(found) == {
        "metadata": {"uid": "u1", "resourceVersion": "7", **gone},
        "spec": {"schedulingGates": LETTING_GO},
    }


def test_annotations_of_the_hold_are_replaced_or_taken_off() -> None:
    """A pod that gets nothing keeps no reason to wait."""
    found = release(held(annotations={REASON: "held", ADDED: "{}"}), MULTI, admission=settings("none", rules=()))
    assert patch_of(found)["metadata"]["annotations"] == {REASON: None, ADDED: None}


def test_what_ungates_a_pod_takes_off_gate_label_and_reason_alone() -> None:
    """Of that pod, whatever version it has by now."""
    assert msgspec.json.decode(encode_ungating("u1")) == {
        "metadata": {"uid": "u1", "annotations": {REASON: None}, "labels": {GATED_LABEL: None}},
        "spec": {"schedulingGates": LETTING_GO},
    }
