"""Where objects of each kind have their pod."""

from typing import Any

import pytest

from extender.kubernetes.pod_templates import node_of, pods_of

SPEC = {"containers": [{"name": "c", "image": "app:1"}], "unknownField": 1}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}


@pytest.mark.parametrize(
    ("kind", "content", "owner"),
    [
        ("Deployment", {"spec": {"template": TEMPLATE}}, "ReplicaSet"),
        ("StatefulSet", {"spec": {"template": TEMPLATE}}, "StatefulSet"),
        ("DaemonSet", {"spec": {"template": TEMPLATE}}, "DaemonSet"),
        ("Job", {"spec": {"template": TEMPLATE, "suspend": True}}, "Job"),
        ("CronJob", {"spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}}, "Job"),
        ("PodTemplate", {"template": TEMPLATE}, "PodTemplate"),
        ("Rollout", {"spec": {"template": TEMPLATE}}, "Rollout"),
    ],
)
def test_a_workload_has_its_pod_in_a_template(kind: str, content: dict[str, Any], owner: str) -> None:
    """With the workload's namespace, the template's labels, every field, and the owner that pods will have."""
    [(place, pod)] = pods_of({"kind": kind, "metadata": {"name": "web", "namespace": "shop"}, **content})
    assert not place
    assert pod["spec"] == SPEC
    assert pod["metadata"] == {
        "labels": {"app": "web"},
        "namespace": "shop",
        "ownerReferences": [{"kind": owner, "controller": True}],
    }


def test_a_pod_is_its_own_pod_without_its_node_and_its_status() -> None:
    """It is explained as if it were created now."""
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}
    bound = {**pod, "spec": {**SPEC, "nodeName": "n"}, "status": {"phase": "Running"}}
    assert pods_of(bound) == [("", {"apiVersion": "v1", **pod})]
    assert node_of(bound) == "n"


OTHERS: list[dict[str, Any]] = [
    {"kind": "ConfigMap", "data": {}},
    {"kind": "Deployment"},
    {"kind": "Deployment", "spec": None},
    {"kind": "Deployment", "spec": {"template": {"spec": {"containers": None}}}},
    {"kind": "CronJob", "spec": {"jobTemplate": []}},
    {"spec": {"template": "text"}},
    {},
]


def test_other_objects_have_no_pod() -> None:
    for other in OTHERS:
        assert (pods_of(other), node_of(other)) == ([], "")
