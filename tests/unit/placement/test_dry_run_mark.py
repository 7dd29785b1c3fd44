"""The mark that a webhook puts on a canary, and who can tell it from other marks."""

from typing import Any

import msgspec

from extender.placement.dry_run_mark import is_marked, mark_canary, marks_of
from extender.placement.policy import CANARY
from tests.unit.placement.json_patch import apply

NONCE = "3f9a-71"


def canary(value: object = NONCE) -> dict[str, Any]:
    return {"metadata": {"annotations": {CANARY: value, "other/key": "x"}}}


def marked(pod: dict[str, Any], *installations: str) -> dict[str, Any]:
    for installation in installations:
        patch = mark_canary(pod["metadata"]["annotations"], installation)
        assert patch is not None
        pod = apply(pod, patch)
    return pod


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
    pod = marked(canary(), "first", "second")
    assert is_marked(pod, NONCE, "first")
    assert is_marked(pod, NONCE, "second")
    assert len(marks_of(pod)) == 2
    assert mark_canary(pod["metadata"]["annotations"], "first") == b""
    many = marked(pod, *(f"installation-{number}" for number in range(20)))
    assert len(marks_of(many)) == 8  # anyone may write the annotation, and what is copied has a bound


def test_other_values_are_no_canary() -> None:
    """They are left to the ordinary review, as are pods without the annotation."""
    marks = f"x {'0' * 32}  {'0' * 32}"
    for value in ("", " ", "a b", "a\nb", "é", "x" * 65, "x" * 100_000, "x " + "0" * 31, marks, "x "):
        assert mark_canary({CANARY: value}, "ours") is None
    for annotations in (None, msgspec.UNSET, {}, {"other/key": NONCE}):
        assert mark_canary(annotations, "ours") is None


def test_what_comes_back_may_be_anything() -> None:
    anything: list[dict[str, Any]] = [{}, {"metadata": None}, {"metadata": {"annotations": []}}, canary(3)]
    for pod in anything:
        assert not is_marked(pod, NONCE, "ours")
        assert marks_of(pod) == []
