"""In which words a report says what keeps kube-scheduler from a node; test_decision_fuzz shows that it does."""

from typing import Any

import pytest

from extender.kubernetes.core_v1 import CreatedSpec, NodeSelectorRequirement
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.node_match import demands_of, is_met, obstacles
from tests.builders import ARCH, OS, Json, decoded, expression, node, with_terms

ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}


def said(on: Json, **spec: Any) -> list[str]:
    demands = demands_of(decoded(spec, CreatedSpec))
    return [f"{each.rule} {each.subject}" for each in obstacles(demands, decoded(on, ReportedNode))]


def test_a_plain_pod_meets_no_obstacle() -> None:
    assert said(node()) == []
    assert said(node(), affinity=None, nodeSelector=None, tolerations=None) == []
    assert said(node(taints=[{**ARM_TAINT, "effect": "PreferNoSchedule"}])) == []


def test_a_cordoned_node_is_named_once() -> None:
    cordoned = node(unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    assert said(cordoned) == ["unschedulable spec.unschedulable: true"]
    tolerating = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert said(cordoned, tolerations=tolerating) == []


def test_each_unmatched_label_of_the_selector_is_named() -> None:
    selector = {"zone": "b", OS: "linux", "disk": "ssd"}
    assert said(node(labels={"zone": "a"}), nodeSelector=selector) == ["selector disk=ssd", "selector zone=b"]


def test_terms_are_alternatives_and_an_empty_one_matches_no_node() -> None:
    of = node(platform="linux/arm64", labels={"zone": "a"})
    one, right = ({"matchExpressions": [each]} for each in (expression(ARCH, "amd64"), expression("zone", "a")))
    other = {"matchExpressions": [expression("zone", "a"), expression("disk", "ssd")]}
    assert said(of, affinity=with_terms(one, right)) == []
    assert said(of, affinity=with_terms(one, other)) == ["affinity kubernetes.io/arch In [amd64]; or disk In [ssd]"]
    assert said(of, affinity=with_terms({})) == ["affinity no term that any node can match"]


def test_a_term_may_name_the_node() -> None:
    for name, found in (("n", []), ("m", ["affinity no term that any node can match"])):
        assert said(node(), affinity=with_terms({"matchFields": [expression("metadata.name", name)]})) == found


def test_a_taint_is_written_as_kubectl_writes_it() -> None:
    assert said(node(taints=[{"key": "key", "effect": "NoExecute"}])) == ["taint key:NoExecute"]


@pytest.mark.parametrize(
    ("value", "bound", "is_greater"),
    [
        ("4", "3", True), ("3", "3", False), ("-1", "-2", True), ("+4", "3", True), ("010", "9", True),
        ("9223372036854775807", "0", True), ("9223372036854775808", "0", False), ("0", "-9223372036854775809", False),
        ("1_0", "3", False), ("4", "1_0", False), ("4", "0_1", False), (" 4", "3", False), ("4\n", "3", False),
        ("٤", "3", False), ("0x4", "3", False), ("4.0", "3", False), ("", "3", False), ("4", "", False),
        ("++4", "3", False), ("9" * 5_000, "3", False), ("4", "9" * 5_000, False),
    ],
)  # fmt: skip
def test_numbers_are_read_as_kube_scheduler_reads_them(value: str, bound: str, is_greater: bool) -> None:
    """By strconv.ParseInt, in base 10 and 64 bits; what is no number meets neither operator."""
    for operator, expected in (("Gt", is_greater), ("Lt", False)):
        requirement = NodeSelectorRequirement("cores", operator, (bound,))
        assert is_met(requirement, value) is expected
        assert not is_met(requirement, None)
    assert not is_met(NodeSelectorRequirement("cores", "Gt", ("1", "2")), "4")
    assert not is_met(NodeSelectorRequirement("cores", "Gt"), "4")
