"""Which nodes kube-scheduler refuses for a pod by its own rules, and in which words a report says so."""

from typing import Any

import msgspec
import pytest

from extender.kubernetes.core_v1 import CreatedSpec, Taint, Toleration
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.node_match import NodeDemands, demands_of, obstacles, taint_text, tolerates
from tests.builders import expression, with_terms

ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
LABELS = {"kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux", "zone": "a", "cores": "8"}


def node(labels: dict[str, str] = LABELS, **spec: Any) -> ReportedNode:
    return msgspec.convert({"metadata": {"name": "n", "labels": labels}, "spec": spec}, ReportedNode)


def demands(**spec: Any) -> NodeDemands:
    return demands_of(msgspec.json.decode(msgspec.json.encode(spec), type=CreatedSpec))


def said(asked_for: NodeDemands, of: ReportedNode) -> list[str]:
    return [f"{each.rule} {each.subject}" for each in obstacles(asked_for, of)]


def test_a_plain_pod_meets_no_obstacle() -> None:
    """On a node without taints; a null field is as good as none."""
    assert said(demands(), node()) == []
    assert said(demands(affinity=None, nodeSelector=None, tolerations=None), node()) == []


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}, True),
        ({"key": "kubernetes.io/arch", "value": "arm64"}, True),
        ({"key": "kubernetes.io/arch", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "kubernetes.io/arch", "value": "amd64"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "kubernetes.io/arch", "operator": "Gt", "value": "3"}, False),
    ],
)
def test_tolerations_are_read_as_kube_scheduler_reads_them(toleration: dict[str, str], is_tolerated: bool) -> None:
    """An empty effect matches all, an empty key too with Exists, an empty operator means Equal."""
    assert tolerates(msgspec.convert(toleration, Toleration), msgspec.convert(ARM_TAINT, Taint)) == is_tolerated
    found = said(demands(tolerations=[toleration]), node(taints=[ARM_TAINT]))
    assert found == ([] if is_tolerated else ["taint kubernetes.io/arch=arm64:NoSchedule"])


def test_a_soft_taint_is_no_obstacle() -> None:
    """PreferNoSchedule only lowers a score."""
    assert said(demands(), node(taints=[{**ARM_TAINT, "effect": "PreferNoSchedule"}])) == []


def test_a_cordoned_node_is_named_once() -> None:
    """Its taint says the same as its field."""
    cordoned = node(unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    assert said(demands(), cordoned) == ["unschedulable spec.unschedulable: true"]
    tolerating = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert said(demands(tolerations=tolerating), cordoned) == []


def test_each_unmatched_label_of_the_selector_is_named() -> None:
    """In the order of their keys."""
    selector = {"zone": "b", "kubernetes.io/os": "linux", "disk": "ssd"}
    assert said(demands(nodeSelector=selector), node()) == ["selector disk=ssd", "selector zone=b"]


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        (expression("kubernetes.io/arch", "amd64", "arm64"), True),
        (expression("kubernetes.io/arch", "amd64"), False),
        (expression("absent", "x"), False),
        (expression("kubernetes.io/arch", "amd64", operator="NotIn"), True),
        (expression("absent", "x", operator="NotIn"), True),
        (expression("kubernetes.io/arch", "arm64", operator="NotIn"), False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "absent", "operator": "Exists"}, False),
        ({"key": "absent", "operator": "DoesNotExist"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        (expression("cores", "4", operator="Gt"), True),
        (expression("cores", "8", operator="Gt"), False),
        (expression("cores", "9", operator="Lt"), True),
        (expression("zone", "9", operator="Lt"), False),
        (expression("absent", "9", operator="Lt"), False),
    ],
)
def test_requirements_are_read_as_kube_scheduler_reads_them(requirement: dict[str, Any], is_met: bool) -> None:
    """Every operator; NotIn is met where the label is absent."""
    found = said(demands(affinity=with_terms({"matchExpressions": [requirement]})), node())
    assert (found == []) == is_met


def test_terms_are_alternatives_and_an_empty_one_matches_no_node() -> None:
    """The unmet requirements of all terms are named."""
    one = {"matchExpressions": [expression("kubernetes.io/arch", "amd64")]}
    other = {"matchExpressions": [expression("zone", "a"), expression("disk", "ssd")]}
    assert said(demands(affinity=with_terms(one, {"matchExpressions": [expression("zone", "a")]})), node()) == []
    assert said(demands(affinity=with_terms(one, other)), node()) == [
        "affinity kubernetes.io/arch In [amd64]; or disk In [ssd]"
    ]
    assert said(demands(affinity=with_terms({})), node()) == ["affinity no term that any node can match"]


def test_a_term_may_name_the_node() -> None:
    """By matchFields, as a DaemonSet's controller does."""
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert said(demands(affinity=with_terms({"matchFields": [field]})), node()) == []
    assert said(demands(affinity=with_terms({"matchFields": [{**field, "values": ["m"]}]})), node()) != []


def test_a_taint_is_written_as_kubectl_writes_it() -> None:
    """Without a value there is no equals sign."""
    assert taint_text(Taint("key", None, "NoExecute")) == "key:NoExecute"
    assert taint_text(msgspec.convert(ARM_TAINT, Taint)) == "kubernetes.io/arch=arm64:NoSchedule"
