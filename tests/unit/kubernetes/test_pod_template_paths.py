"""Where the pod templates of documents are."""

import pytest

from extender.kubernetes.pod_templates import pod_templates

POD = {"spec": {"containers": [{"image": "app"}]}}


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("v1", "Pod", ()),
        ("v1", "PodTemplate", ("template",)),
        ("v1", "ReplicationController", ("spec", "template")),
        ("apps/v1", "Deployment", ("spec", "template")),
        ("apps/v1", "StatefulSet", ("spec", "template")),
        ("apps/v1", "DaemonSet", ("spec", "template")),
        ("apps/v1", "ReplicaSet", ("spec", "template")),
        ("batch/v1", "Job", ("spec", "template")),
        ("batch/v1", "CronJob", ("spec", "jobTemplate", "spec", "template")),
    ],
)
def test_each_kind_has_its_template_at_its_path(api_version: str, kind: str, path: tuple[str, ...]) -> None:
    """The path leads from the document to the template."""
    document: object = POD
    for step in reversed(path):
        document = {step: document}
    assert isinstance(document, dict)
    made = {**document, "apiVersion": api_version, "kind": kind, "metadata": {"name": "it", "namespace": "shop"}}
    [found] = pod_templates(made)
    assert (found.path, found.item, str(found)) == (path, (), f"{kind} shop/it")
    assert found.template["spec"] == POD["spec"]


def test_the_items_of_lists_are_found_and_lists_in_lists_are_not() -> None:
    """A List, a DeploymentList and a ResourceList; kubectl accepts no list in a list."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "run-"}, "spec": {"template": POD}}
    for kind in ("List", "JobList", "ResourceList"):
        inner = {"kind": "List", "items": [job]}
        [found] = pod_templates({"kind": kind, "items": [{"kind": "Service"}, job, inner]})
        assert (found.item, found.path, str(found)) == (("items", 1), ("items", 1, "spec", "template"), "Job run-")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "Deployment",
        {"kind": "Deployment", "spec": {"template": POD}},
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"template": POD}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": None},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": "text"}}},
        {"apiVersion": "apps/v1", "kind": ["Deployment"], "spec": {"template": POD}},
        {"kind": "List", "items": 3},
    ],
)
def test_what_has_no_template_gives_none(document: object) -> None:
    """A kind of another group, no version, and values of wrong types."""
    assert list(pod_templates(document)) == []
