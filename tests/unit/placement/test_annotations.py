"""What pods and namespaces may ask for, and what becomes of values that are none."""

from collections.abc import Mapping

import pytest

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
    ("pod", "namespace", "overrides"),
    [
        pytest.param(None, None, Overrides(), id="nothing"),
        pytest.param({}, {"team": "shop"}, Overrides(), id="others only"),
        pytest.param({MODE: "observe"}, None, Overrides(mode=Mode.OBSERVE), id="the pod's"),
        pytest.param(None, {MODE: "ignore"}, Overrides(mode=Mode.IGNORE), id="the namespace's"),
        pytest.param({MODE: "enforce"}, {MODE: "ignore"}, Overrides(mode=Mode.ENFORCE), id="both"),
        pytest.param({PREFER: "amd64"}, {PREFER: "none", MODE: "observe"}, Overrides(Mode.OBSERVE, "amd64"), id="each"),
        pytest.param({PREFER: "none"}, {PREFER: "amd64"}, Overrides(prefer="none"), id="none"),
        pytest.param({PREFER: "aarch64"}, None, Overrides(prefer="arm64"), id="another spelling"),
        pytest.param({PREFER: "riscv64"}, None, Overrides(prefer="riscv64"), id="an architecture that nobody listed"),
        pytest.param({UNKNOWN: "pass"}, {UNKNOWN: "retry"}, Overrides(unknown=Choice.PASS), id="unknown"),
    ],
)
def test_the_pod_overrides_its_namespace_key_by_key(
    pod: Annotations, namespace: Annotations, overrides: Overrides
) -> None:
    assert read_overrides(pod, namespace) == overrides
    observing = read_overrides(pod, namespace, Overrides(mode=Mode.OBSERVE))
    is_said = any(MODE in (each or {}) for each in (pod, namespace))
    assert observing.mode is (overrides.mode if is_said else Mode.OBSERVE)


BAD = [
    (MODE, "Observe"), (MODE, ""), (MODE, "off"), (UNKNOWN, "wait"), (UNKNOWN, " pass"), (PREFER, ""),
    (PREFER, "linux/arm64"), (PREFER, "arm64,amd64"), (PREFER, "a" * 64), (PREFER, "arm46"), (PREFER, "true"),
    (PREFER, "amd64" + " " * 262_000), (PREFER, "arm64\n"),
]  # fmt: skip


def test_a_bad_value_is_reported_and_counts_as_absent() -> None:
    """The namespace's good value stays in force, and a sentence says whose value was wrong and what would be right."""
    for key, value in BAD:
        found = read_overrides({key: value}, {MODE: "observe", UNKNOWN: "retry", PREFER: "arm64"})
        assert (found.mode, found.prefer, found.unknown) == (Mode.OBSERVE, "arm64", Choice.RETRY)
        (problem,) = found.problems
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
def test_every_annotation_is_read_where_its_authors_write_it(annotation: Annotation) -> None:
    """What the service writes is no override, and nobody overrides by an annotation that is another's to write."""
    overrides = {
        Writer.POD: read_overrides({annotation.key: "?!"}, None),
        Writer.NAMESPACE: read_overrides(None, {annotation.key: "?!"}),
    }
    for writer, found in overrides.items():
        assert (found != Overrides()) is (writer in annotation.writers)
        assert all(annotation.key in problem for problem in found.problems)
