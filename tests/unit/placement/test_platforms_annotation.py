"""The annotation that tells policies of other engines what a pod's images have in common."""

from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.policy import ADDED, MODE, PLATFORMS, REASON, Overrides
from extender.placement.ungating import UngatingPlanner
from tests.builders import AMD64, ARM64, MULTI, built_for, created, pod
from tests.unit.placement.mutating import POLICY, after, mutate, settings

TOLD = settings(rules=(), platforms_annotation=True)
BOTH = "linux/amd64,linux/arm64"
UNKNOWN = Unknown(Cause.DENIED, "x")
ANYWHERE = Anywhere()


def annotation(document: Any) -> Any:
    return (document["metadata"].get("annotations") or {}).get(PLATFORMS)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param([built_for("linux/arm64", "linux/amd64")], BOTH, id="sorted"),
        pytest.param([MULTI, AMD64], "linux/amd64", id="in common"),
        pytest.param([MULTI, ANYWHERE], BOTH, id="one runs anywhere"),
        pytest.param([AMD64, ARM64], "", id="nothing in common"),
        pytest.param([MULTI, UNKNOWN], None, id="unknown"),
        pytest.param([MULTI, Pending(Cause.LOOKING_UP, "x")], None, id="pending"),
        pytest.param([MULTI, Unknown(Cause.NEVER_PULLED, "x")], None, id="never pulled"),
        pytest.param([ANYWHERE], None, id="anywhere"),
    ],
)
def test_a_pod_is_told_what_all_its_images_have_in_common(facts: list[ImageFact], expected: str | None) -> None:
    """Sorted, empty if that is nothing, and absent while one image is not known; once, and only where asked for."""
    patched = after(pod(len(facts)), *facts, admission=TOLD)
    assert annotation(patched) == expected
    assert mutate(patched, *facts, admission=TOLD).patch == b""
    assert annotation(after(pod(len(facts)), *facts, admission=settings(rules=()))) is None


@pytest.mark.parametrize(
    ("sidecar", "expected"), [(AMD64, "linux/amd64"), (ARM64, "linux/arm64"), (UNKNOWN, None)], ids=str
)
def test_a_sidecar_narrows_or_takes_back_what_was_told(sidecar: ImageFact, expected: str | None) -> None:
    """As if it had been there from the start."""
    document = after(pod(), MULTI, admission=TOLD)
    document["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    again = after(document, MULTI, sidecar, admission=TOLD)
    assert annotation(again) == expected
    assert again == after(pod() | {"spec": document["spec"]}, MULTI, sidecar, admission=TOLD)


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


def test_a_held_pod_is_told_when_it_is_let_go() -> None:
    """In the patch that takes the gate off. Let go unknown it loses what an author claims."""
    for before in ({}, {PLATFORMS: "linux/s390x"}):
        told = release(before, MULTI)["metadata"]["annotations"]
        assert told.keys() == {PLATFORMS, ADDED}
        assert told[PLATFORMS] == BOTH
    unknown = release({PLATFORMS: BOTH}, UNKNOWN)["metadata"]["annotations"]
    assert unknown[PLATFORMS] is None
    assert REASON in unknown


def release(annotations: dict[str, str], *facts: ImageFact) -> Any:
    metadata = {"name": "p", "uid": "u", "labels": {GATED_LABEL: GATED}, "annotations": annotations}
    stored = created(pod(len(facts), metadata=metadata, schedulingGates=[{"name": GATE}]))
    admission = settings(rules=(), unknown="gate", platforms_annotation=True)
    found = UngatingPlanner(POLICY, admission).plan(stored, images_of(stored), facts, Overrides(), expired=True)
    return msgspec.json.decode(found.patch)
