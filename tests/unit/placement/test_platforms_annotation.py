"""The annotation that tells policies of other engines what a pod's images have in common."""

import copy
from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.mutation import AdmissionOutcome
from extender.placement.policy import ADDED, MODE, PLATFORMS, REASON, Overrides
from extender.placement.ungating import UngatingOutcome, UngatingPlanner
from tests.builders import AMD64, ARM64, MULTI, built_for, pod
from tests.unit.placement.mutating import POLICY, after, mutate, settings

TOLD = settings(rules=(), platforms_annotation=True)
BOTH = "linux/amd64,linux/arm64"
UNKNOWN = Unknown(Cause.DENIED, "x")
ANYWHERE = Anywhere()


def annotation(document: Any) -> str | None:
    value: str | None = (document["metadata"].get("annotations") or {}).get(PLATFORMS)
    return value


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([built_for("linux/arm64", "linux/amd64")], BOTH),
        ([MULTI, AMD64], "linux/amd64"),
        ([MULTI, ANYWHERE], BOTH),
        ([AMD64, ARM64], ""),
        ([MULTI, UNKNOWN], None),
        ([MULTI, Pending(Cause.LOOKING_UP, "x")], None),
        ([MULTI, Unknown(Cause.NEVER_PULLED, "x")], None),
        ([ANYWHERE], None),
    ],
    ids=[
        "sorted",
        "in common",
        "one runs anywhere",
        "nothing in common",
        "unknown",
        "pending",
        "never pulled",
        "anywhere",
    ],
)
def test_a_pod_is_told_what_all_its_images_have_in_common(facts: list[ImageFact], expected: str | None) -> None:
    """Sorted, empty if that is nothing, and absent while one image is not known."""
    assert annotation(after(pod(len(facts)), *facts, admission=TOLD)) == expected


def test_no_pod_is_told_unless_the_setting_asks_for_it() -> None:
    """A pod that needs nothing else gets no patch."""
    assert mutate(pod(), MULTI, admission=settings(rules=())).outcome is AdmissionOutcome.UNCHANGED
    assert mutate(pod(), MULTI, admission=TOLD).outcome is AdmissionOutcome.PATCHED


@pytest.mark.parametrize("node_affinity", ["none", "required"])
def test_a_second_pass_changes_nothing(node_affinity: str) -> None:
    """The annotation is what it was, beside whatever else is added."""
    admission = settings(node_affinity, platforms_annotation=True)
    once = after(pod(), AMD64, admission=admission)
    assert annotation(once) == "linux/amd64"
    assert mutate(once, AMD64, admission=admission).patch == b""


@pytest.mark.parametrize(
    ("sidecar", "expected"), [(AMD64, "linux/amd64"), (ARM64, "linux/arm64"), (UNKNOWN, None)], ids=str
)
def test_a_sidecar_narrows_or_takes_back_what_was_told(sidecar: ImageFact, expected: str | None) -> None:
    """As if it had been there from the start."""
    once = after(pod(), MULTI, admission=TOLD)
    document = copy.deepcopy(once)
    document["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    again = after(document, MULTI, sidecar, admission=TOLD)
    assert annotation(again) == expected
    assert again == after(
        pod() | {"spec": document["spec"]}, MULTI, sidecar, admission=TOLD
    )  # and nothing of the first pass is left


def test_what_an_author_claims_is_replaced() -> None:
    """Also where the setting is off, so that a policy never reads what nobody has looked up."""
    claimed = pod(metadata={"annotations": {PLATFORMS: BOTH}})
    assert annotation(after(claimed, AMD64, admission=TOLD)) == "linux/amd64"
    assert annotation(after(claimed, AMD64, admission=settings(rules=()))) is None


def test_an_observed_pod_is_told_nothing() -> None:
    """What would be written is in no audit annotation, as the verdict has it."""
    observed = mutate(pod(), MULTI, admission=TOLD, namespace={MODE: "observe"})
    assert observed.patch == b""
    assert observed.audit_annotations == {"verdict": "runs on linux/amd64, linux/arm64", "would-be": "patched"}


@pytest.mark.parametrize(("before", "expected"), [({}, BOTH), ({PLATFORMS: "linux/s390x"}, BOTH)], ids=["new", "old"])
def test_a_held_pod_is_told_when_it_is_let_go(before: dict[str, str], expected: str) -> None:
    """In the patch that takes the gate off."""
    found = release(before, MULTI)
    assert found["metadata"]["annotations"].keys() == {PLATFORMS, ADDED}
    assert found["metadata"]["annotations"][PLATFORMS] == expected


def test_a_held_pod_that_is_let_go_unknown_loses_what_an_author_claims() -> None:
    """Policies read it as not known."""
    found = release({PLATFORMS: BOTH}, UNKNOWN)
    assert found["metadata"]["annotations"][PLATFORMS] is None
    assert REASON in found["metadata"]["annotations"]


def release(annotations: dict[str, str], *facts: ImageFact) -> Any:
    metadata = {
        "name": "p",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {GATED_LABEL: GATED},
        "annotations": annotations,
    }
    document = pod(len(facts), metadata=metadata, schedulingGates=[{"name": GATE}])
    stored = msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod)
    admission = settings(rules=(), unknown="gate", platforms_annotation=True)
    found = UngatingPlanner(POLICY, admission).plan(stored, images_of(stored), facts, Overrides(), expired=True)
    assert found.outcome in (UngatingOutcome.KNOWN, UngatingOutcome.PASSED)
    return msgspec.json.decode(found.patch)
