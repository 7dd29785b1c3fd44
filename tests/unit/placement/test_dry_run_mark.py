"""The mark that a webhook puts on a canary, and who can tell it from other marks."""

from typing import Any

import msgspec
import pytest

from extender.placement.dry_run_mark import is_marked, mark_canary, marks_of
from extender.placement.policy import CANARY
from tests.unit.placement.json_patch import apply

NONCE = "3f9a-71"


def canary(value: object = NONCE) -> dict[str, Any]:
    """A canary with this value of the annotation, beside an annotation of somebody else."""
    return {"metadata": {"annotations": {CANARY: value, "other/key": "x"}}}


def marked(pod: dict[str, Any], installation: str) -> dict[str, Any]:
    patch = mark_canary(pod["metadata"]["annotations"], installation)
    assert patch is not None
    changed: dict[str, Any] = apply(pod, patch)
    return changed


def test_the_mark_is_that_of_the_installation() -> None:
    """Another installation's mark does not count, and neither does that of another canary."""
    pod = marked(canary(), "ours")
    assert is_marked(pod, NONCE, "ours")
    assert not is_marked(pod, NONCE, "theirs")
    assert not is_marked(pod, "another", "ours")
    assert not is_marked(canary(), NONCE, "ours")
    assert pod["metadata"]["annotations"]["other/key"] == "x"


def test_several_installations_mark_one_canary() -> None:
    """Each webhook that is called puts its mark behind those that are there; a second pass changes nothing."""
    pod = marked(marked(canary(), "first"), "second")
    assert is_marked(pod, NONCE, "first")
    assert is_marked(pod, NONCE, "second")
    assert len(marks_of(pod)) == 2
    assert mark_canary(pod["metadata"]["annotations"], "first") == b""


def test_a_canary_does_not_grow_for_ever() -> None:
    """Marks of others end at some number: an annotation that anyone may write bounds what is copied."""
    pod = canary()
    for number in range(20):
        pod = marked(pod, f"installation-{number}")
    assert len(marks_of(pod)) == 8


@pytest.mark.parametrize(
    "value", ["", " ", "a b", "a\nb", "é", "x" * 65, "x" * 100_000, "x " + "0" * 31, f"x {'0' * 32}  {'0' * 32}", "x "]
)
def test_other_values_are_no_canary(value: str) -> None:
    """They are left to the ordinary review."""
    assert mark_canary({CANARY: value}, "ours") is None


@pytest.mark.parametrize("annotations", [None, msgspec.UNSET, {}, {"other/key": NONCE}])
def test_pods_without_the_annotation_are_no_canary(annotations: Any) -> None:
    """Missing, null or of other keys."""
    assert mark_canary(annotations, "ours") is None


@pytest.mark.parametrize("pod", [{}, {"metadata": None}, {"metadata": {"annotations": []}}, canary(3)])
def test_what_comes_back_may_be_anything(pod: dict[str, Any]) -> None:
    """A pod without the annotation, or with something else in its place, is unmarked."""
    assert not is_marked(pod, NONCE, "ours")
    assert marks_of(pod) == []
