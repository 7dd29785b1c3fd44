"""The annotation that tells policies of other engines what a pod's images have in common."""

from typing import Any

import pytest

from extender.placement.annotations import ADDED, MODE, PLATFORMS, REASON
from extender.placement.facts import Anywhere, ImageFact
from tests.builders import AMD64, ARM64, MULTI, built_for, pod
from tests.unit.placement.held_pods import held, patch_of, release
from tests.unit.placement.mutating import COLD, DENIED, NEVER_PULLED, after, mutate, settings

TOLD = settings(rules=(), platforms_annotation=True)
BOTH = "linux/amd64,linux/arm64"
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
        pytest.param([MULTI, DENIED], None, id="unknown"),
        pytest.param([MULTI, COLD], None, id="pending"),
        pytest.param([MULTI, NEVER_PULLED], None, id="never pulled"),
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
    ("sidecar", "expected"), [(AMD64, "linux/amd64"), (ARM64, "linux/arm64"), (DENIED, None)], ids=str
)
def test_a_sidecar_narrows_or_takes_back_what_was_told(sidecar: ImageFact, expected: str | None) -> None:
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
    admission = settings(rules=(), unknown="gate", platforms_annotation=True)
    for before in ({}, {PLATFORMS: "linux/s390x"}):
        told = patch_of(release(held(1, before), MULTI, admission=admission))["metadata"]["annotations"]
        assert told.keys() == {PLATFORMS, ADDED}
        assert told[PLATFORMS] == BOTH
    left = release(held(1, {PLATFORMS: BOTH}), DENIED, expired=True, admission=admission)
    unknown = patch_of(left)["metadata"]["annotations"]
    assert unknown[PLATFORMS] is None
    assert REASON in unknown
