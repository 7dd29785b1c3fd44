"""A share of a workload's pods: its size, the same pods each time, and no more change than a new share asks for."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.kubernetes.core_v1 import Pod
from extender.placement.policy import NO_PREFERENCE, PREFER, PREFER_SHARE, Policy, overrides_of, read_overrides
from extender.placement.shares import point_of
from tests.builders import decoded

INDEX = "batch.kubernetes.io/job-completion-index"
PODS = 1000
Make = Callable[[int], tuple[Pod, str]]


def pod(name: str | None, kind: str = "", owner: str = "", **annotations: str) -> Pod:
    owners = [{"kind": kind, "name": owner, "controller": True}] if kind else None
    return decoded({"metadata": {"name": name, "ownerReferences": owners, "annotations": annotations or None}}, Pod)


MAKERS: Mapping[str, Callable[[int], tuple[Pod, str]]] = {
    "StatefulSet": lambda index: (pod(f"db-{index}", "StatefulSet", "db"), ""),
    "Job": lambda index: (pod(None, "Job", "batch", **{INDEX: str(index)}), "draw"),
    "ReplicaSet": lambda index: (pod(f"web-5d4f8c7b9-{index:05x}", "ReplicaSet", "web-5d4f8c7b9"), ""),
    "template": lambda index: (pod(None, "ReplicaSet", "web"), f"00000000-0000-4000-8000-{index:012x}"),
}
KINDS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def chosen(make: Make, share: str, count: int = PODS, namespace: str = "shop") -> set[int]:
    defaults = {PREFER_SHARE: share, PREFER: "arm64"}
    found = {}
    for index in range(count):
        made, draw = make(index)
        found[index] = overrides_of(made, b"{}", namespace, defaults, Policy(), draw=draw)
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
    points = [point_of(pod(f"{name}-{index}", "StatefulSet", name), "shop") for index in range(count)]
    assert abs(sum(point < share for point in points) - count * share / 100) < 3


def test_workloads_are_divided_each_in_its_own_way() -> None:
    """Not every first replica of a cluster is in a small share."""
    first = [point_of(pod(f"db{number}-0", "StatefulSet", f"db{number}"), "shop") for number in range(PODS)]
    assert abs(sum(point < 20 for point in first) - PODS / 5) <= 3 * PODS / 100
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
    assert overrides_of(own, b"{}", "shop", {PREFER_SHARE: "0%"}, Policy()).prefer is None
    none = overrides_of(own, b"{}", "shop", {PREFER: NO_PREFERENCE}, Policy())
    assert none.prefer == NO_PREFERENCE
