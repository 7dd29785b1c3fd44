"""What pods and namespaces may ask for, and what becomes of values that are none."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import extender
from extender.placement.nodes import PREFIX
from extender.placement.policy import (
    ANNOTATIONS,
    MODE,
    PREFER,
    UNKNOWN,
    Annotation,
    Choice,
    Mode,
    Overrides,
    Writer,
    read_overrides,
)

Annotations = Mapping[str, str] | None


@pytest.mark.parametrize(
    ("pod", "namespace", "mode"),
    [
        (None, None, Mode.OBSERVE),
        ({PREFER: "arm64"}, None, Mode.OBSERVE),
        (None, {MODE: "enforce"}, Mode.ENFORCE),
        ({MODE: "ignore"}, {MODE: "enforce"}, Mode.IGNORE),
        ({MODE: "nonsense"}, None, Mode.OBSERVE),
    ],
)
def test_the_operator_s_mode_holds_where_no_annotation_says_otherwise(
    pod: Annotations, namespace: Annotations, mode: Mode
) -> None:
    """A value that is not allowed says nothing."""
    assert read_overrides(pod, namespace, Overrides(mode=Mode.OBSERVE)).mode is mode


@pytest.mark.parametrize(
    ("pod", "namespace", "overrides"),
    [
        (None, None, Overrides()),
        ({}, {"team": "shop"}, Overrides()),
        ({MODE: "observe"}, None, Overrides(mode=Mode.OBSERVE)),
        (None, {MODE: "ignore"}, Overrides(mode=Mode.IGNORE)),
        ({MODE: "enforce"}, {MODE: "ignore"}, Overrides(mode=Mode.ENFORCE)),
        ({PREFER: "amd64"}, {PREFER: "none", MODE: "observe"}, Overrides(Mode.OBSERVE, "amd64")),
        ({PREFER: "none"}, {PREFER: "amd64"}, Overrides(prefer="none")),
        ({PREFER: "aarch64"}, None, Overrides(prefer="arm64")),
        ({PREFER: "x86_64"}, None, Overrides(prefer="amd64")),
        ({PREFER: "riscv64"}, None, Overrides(prefer="riscv64")),
        ({UNKNOWN: "pass"}, {UNKNOWN: "retry"}, Overrides(unknown=Choice.PASS)),
        ({UNKNOWN: "assume"}, {}, Overrides(unknown=Choice.ASSUME)),
    ],
    ids=[
        "nothing", "others-only", "pod-mode", "namespace-mode", "pod-overrides", "each-key-by-itself", "none-overrides",
        "spelling", "spelling-too", "unlisted-architecture", "unknown-overrides", "unknown",
    ],
)  # fmt: skip
def test_the_pod_overrides_its_namespace_key_by_key(
    pod: Annotations, namespace: Annotations, overrides: Overrides
) -> None:
    """The namespace's value is the default."""
    assert read_overrides(pod, namespace) == overrides


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MODE, "Observe"),
        (MODE, ""),
        (MODE, "off"),
        (UNKNOWN, "wait"),
        (UNKNOWN, " pass"),
        (PREFER, ""),
        (PREFER, "linux/arm64"),
        (PREFER, "arm64,amd64"),
        (PREFER, "a" * 64),
        (PREFER, "arm46"),
        (PREFER, "true"),
        (PREFER, "amd64" + " " * 262_000),
        (PREFER, "arm64\n"),
    ],
)
def test_a_bad_value_is_reported_and_counts_as_absent(key: str, value: str) -> None:
    """The namespace's good value stays in force, and a sentence says whose value was wrong and what would be right."""
    good = {MODE: "observe", UNKNOWN: "retry", PREFER: "arm64"}
    overrides = read_overrides({key: value}, good)
    assert (overrides.mode, overrides.prefer, overrides.unknown) == (Mode.OBSERVE, "arm64", Choice.RETRY)
    (problem,) = overrides.problems
    assert problem.startswith(f"the pod's annotation {key} is ")
    assert "; it must be " in problem


def test_every_bad_value_is_reported_and_long_ones_are_cut() -> None:
    """Annotations may be 256 KiB long, and what is said of them goes into warnings."""
    overrides = read_overrides({MODE: "x" * 262_144, PREFER: "?"}, {UNKNOWN: "?"})
    assert (overrides.mode, overrides.prefer, overrides.unknown) == (Mode.ENFORCE, None, None)
    assert len(overrides.problems) == 3
    assert overrides.problems[0].startswith("the namespace's annotation")
    assert all(len(problem) < 200 for problem in overrides.problems)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: annotation.key)
def test_every_annotation_is_declared_whole(annotation: Annotation) -> None:
    """Its key is ours and its alone; what authors write is read into a field, what the service writes is not."""
    assert annotation.key.startswith(PREFIX)
    assert [other.key for other in ANNOTATIONS].count(annotation.key) == 1
    assert annotation.values
    assert annotation.meaning
    ours = annotation.writers in ((Writer.SERVICE,), (Writer.CANARY,))
    assert ours == (not {Writer.SERVICE, Writer.CANARY}.isdisjoint(annotation.writers)) == (annotation.parse is None)
    assert (annotation.field in Overrides.__struct_fields__) is not ours


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: annotation.key)
def test_every_annotation_is_read_where_its_authors_write_it(annotation: Annotation) -> None:
    """What the service writes is no override, and nobody overrides by an annotation that is another's to write."""
    overrides = {
        Writer.POD: read_overrides({annotation.key: "?!"}, None),
        Writer.NAMESPACE: read_overrides(None, {annotation.key: "?!"}),
    }
    for writer, found in overrides.items():
        assert (found != Overrides()) is (writer in annotation.writers)
        assert all(annotation.key in problem for problem in found.problems)


def test_no_key_is_written_down_elsewhere() -> None:
    """An annotation that is named beside the table would be read and cached past it."""
    declared = Path("placement", "nodes.py")
    root = Path(extender.__file__).parent
    named = {file.relative_to(root) for file in root.rglob("*.py") if PREFIX in file.read_text("utf-8")}
    assert named == {declared}
