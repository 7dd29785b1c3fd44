"""What pods and namespaces may ask for, what becomes of values that are none, and a share of a workload's pods."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.kubernetes.core_v1 import Pod
from extender.placement.annotations import (
    ANNOTATIONS,
    MODE,
    NO_PREFERENCE,
    PREFER,
    PREFER_SHARE,
    UNKNOWN,
    Annotation,
    Choice,
    Mode,
    Overrides,
    Writer,
    overrides_of,
    read_overrides,
)
from extender.placement.shares import bucket_of
from tests.builders import decoded

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
    for found in (read_overrides({annotation.key: "?!"}, None), read_overrides(None, {annotation.key: "?!"})):
        assert (found != Overrides()) is (annotation.writer is Writer.AUTHOR)
        assert all(annotation.key in problem for problem in found.problems)


INDEX = "batch.kubernetes.io/job-completion-index"
PODS = 1000
Make = Callable[[int], tuple[Pod, str]]


def pod(name: str | None, kind: str = "", owner: str = "", **annotations: str) -> Pod:
    owners = [{"kind": kind, "name": owner, "controller": True}] if kind else None
    return decoded({"metadata": {"name": name, "ownerReferences": owners, "annotations": annotations or None}}, Pod)


MAKERS: Mapping[str, Callable[[int], tuple[Pod, str]]] = {
    "StatefulSet": lambda index: (pod(f"db-{index}", "StatefulSet", "db"), ""),
    "Job": lambda index: (pod(None, "Job", "batch", **{INDEX: str(index)}), "key"),
    "ReplicaSet": lambda index: (pod(f"web-5d4f8c7b9-{index:05x}", "ReplicaSet", "web-5d4f8c7b9"), ""),
    "template": lambda index: (pod(None, "ReplicaSet", "web"), f"00000000-0000-4000-8000-{index:012x}"),
}
KINDS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def chosen(make: Make, share: str, count: int = PODS, namespace: str = "shop") -> set[int]:
    defaults = {PREFER_SHARE: share, PREFER: "arm64"}
    found = {}
    for index in range(count):
        made, key = make(index)
        found[index] = overrides_of(made, namespace, defaults, Overrides(), key=key)
    assert {each.prefer for each in found.values()} <= {"arm64", NO_PREFERENCE}
    assert all(each.prefer_share is None for each in found.values())
    return {index for index, each in found.items() if each.prefer == "arm64"}


@KINDS
def test_a_share_of_a_thousand_pods_is_that_share(make: Make) -> None:
    """Within three percentage points, the same pods in a second life, and those in a smaller share in every larger."""
    shares = {percentage: chosen(make, f"{percentage}%") for percentage in (0, 5, 20, 20.5, 50, 80, 100)}
    for percentage, found in shares.items():
        assert abs(100 * len(found) / PODS - percentage) <= 3
    assert all(smaller <= larger for smaller, larger in pairwise(shares.values()))
    assert (shares[0], shares[100]) == (set(), set(range(PODS)))
    assert chosen(make, "20%") == shares[20]


@given(st.integers(1, 99), st.integers(1, 60), st.text("abc", min_size=1, max_size=8))
def test_few_replicas_with_ordinals_are_divided_as_evenly_as_they_can_be(share: int, count: int, name: str) -> None:
    buckets = [bucket_of(pod(f"{name}-{index}", "StatefulSet", name), "shop") for index in range(count)]
    assert abs(sum(bucket is not None and bucket < share for bucket in buckets) - count * share / 100) < 3


def test_workloads_are_divided_each_in_its_own_way() -> None:
    """Not every first replica of a cluster is in a small share."""
    first = [bucket_of(pod(f"db{number}-0", "StatefulSet", f"db{number}"), "shop") for number in range(PODS)]
    assert abs(sum(point is not None and point < 20 for point in first) - PODS / 5) <= 3 * PODS / 100
    assert chosen(MAKERS["StatefulSet"], "20%") != chosen(MAKERS["StatefulSet"], "20%", namespace="other")


def test_a_template_has_the_preference_only_if_all_pods_have_it() -> None:
    """Nothing tells its pods apart yet."""
    template = (pod(None, "Job", "batch"), "")
    assert chosen(lambda _: template, "99.99%", 1) == set()
    assert chosen(lambda _: template, "100%", 1) == {0}


def test_what_is_no_percentage_is_reported() -> None:
    for value in ("20", "-1%", "101%", "100.01%", "a%", "%", "1e1%", "", "20 %", "٢%"):
        found = read_overrides({PREFER_SHARE: value}, None)
        assert found.prefer_share is None
        [problem] = found.problems
        assert problem.endswith("was ignored; it must be a percentage such as 20%")


def test_the_pods_own_share_is_before_its_namespaces() -> None:
    """No preference at all is before either; and a pod with an annotation has no template."""
    own = pod("web-0", "StatefulSet", "web", **{PREFER_SHARE: "100%"})
    assert overrides_of(own, "shop", {PREFER_SHARE: "0%"}, Overrides()).prefer is None
    none = overrides_of(own, "shop", {PREFER: NO_PREFERENCE}, Overrides())
    assert none.prefer == NO_PREFERENCE
