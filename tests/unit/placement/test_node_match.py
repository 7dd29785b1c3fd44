"""Which nodes kube-scheduler refuses for a pod by its own rules, and in which words a report says so."""

from typing import Any

import pytest

from extender.kubernetes.core_v1 import CreatedSpec
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.node_match import demands_of, obstacles
from tests.builders import ARCH, OS, Json, decoded, expression, node, with_terms

ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}


def said(on: Json, **spec: Any) -> list[str]:
    demands = demands_of(decoded(spec, CreatedSpec))
    return [f"{each.rule} {each.subject}" for each in obstacles(demands, decoded(on, ReportedNode))]


def test_a_plain_pod_meets_no_obstacle() -> None:
    """On a node without taints, or with a soft one; a null field is as good as none."""
    assert said(node()) == []
    assert said(node(), affinity=None, nodeSelector=None, tolerations=None) == []
    assert said(node(taints=[{**ARM_TAINT, "effect": "PreferNoSchedule"}])) == []


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"key": ARCH, "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}, True),
        ({"key": ARCH, "value": "arm64"}, True),
        ({"key": ARCH, "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": ARCH, "value": "amd64"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": ARCH, "operator": "Gt", "value": "3"}, False),
    ],
)
def test_tolerations_are_read_as_kube_scheduler_reads_them(toleration: dict[str, str], is_tolerated: bool) -> None:
    """An empty effect matches all, an empty key too with Exists, an empty operator means Equal."""
    found = said(node(taints=[ARM_TAINT]), tolerations=[toleration])
    assert found == ([] if is_tolerated else ["taint kubernetes.io/arch=arm64:NoSchedule"])


def test_a_cordoned_node_is_named_once() -> None:
    """Its taint says the same as its field."""
    cordoned = node(unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    assert said(cordoned) == ["unschedulable spec.unschedulable: true"]
    tolerating = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert said(cordoned, tolerations=tolerating) == []


def test_each_unmatched_label_of_the_selector_is_named() -> None:
    """In the order of their keys."""
    selector = {"zone": "b", OS: "linux", "disk": "ssd"}
    assert said(node(labels={"zone": "a"}), nodeSelector=selector) == ["selector disk=ssd", "selector zone=b"]


MET = [
    expression("zone", "a", "b"),
    expression("zone", "b", operator="NotIn"),
    expression("absent", "x", operator="NotIn"),
    {"key": "zone", "operator": "Exists"},
    {"key": "absent", "operator": "DoesNotExist"},
    expression("cores", "4", operator="Gt"),
    expression("cores", "9", operator="Lt"),
]
UNMET = [
    expression("zone", "b"),
    expression("absent", "x"),
    expression("zone", "a", operator="NotIn"),
    {"key": "absent", "operator": "Exists"},
    {"key": "zone", "operator": "DoesNotExist"},
    expression("cores", "8", operator="Gt"),
    expression("zone", "9", operator="Lt"),
    expression("absent", "9", operator="Lt"),
]


@pytest.mark.parametrize(("rows", "is_met"), [(MET, True), (UNMET, False)], ids=["met", "unmet"])
def test_requirements_are_read_as_kube_scheduler_reads_them(rows: list[Json], is_met: bool) -> None:
    """Every operator; NotIn is met where the label is absent."""
    for requirement in rows:
        found = said(node(labels={"zone": "a", "cores": "8"}), affinity=with_terms({"matchExpressions": [requirement]}))
        assert (found == []) is is_met, requirement


def test_terms_are_alternatives_and_an_empty_one_matches_no_node() -> None:
    """The unmet requirements of all terms are named."""
    of = node(platform="linux/arm64", labels={"zone": "a"})
    one, right = ({"matchExpressions": [each]} for each in (expression(ARCH, "amd64"), expression("zone", "a")))
    other = {"matchExpressions": [expression("zone", "a"), expression("disk", "ssd")]}
    assert said(of, affinity=with_terms(one, right)) == []
    assert said(of, affinity=with_terms(one, other)) == ["affinity kubernetes.io/arch In [amd64]; or disk In [ssd]"]
    assert said(of, affinity=with_terms({})) == ["affinity no term that any node can match"]


def test_a_term_may_name_the_node() -> None:
    """By matchFields, as a DaemonSet's controller does."""
    for name, found in (("n", []), ("m", ["affinity no term that any node can match"])):
        assert said(node(), affinity=with_terms({"matchFields": [expression("metadata.name", name)]})) == found


def test_a_taint_is_written_as_kubectl_writes_it() -> None:
    """Without a value there is no equals sign."""
    assert said(node(taints=[{"key": "key", "effect": "NoExecute"}])) == ["taint key:NoExecute"]
