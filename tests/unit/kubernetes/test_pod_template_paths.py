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
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": {"containers": [{}, 1]}}}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": POD, "status": {"template": POD}},
        {"apiVersion": "x.io/v1", "kind": "Definition", "spec": {"properties": {"containers": {"image": "text"}}}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": None},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": "text"}}},
        {"apiVersion": "apps/v1", "kind": ["Deployment"], "spec": {"template": POD}},
        {"kind": "List", "items": 3},
    ],
)
def test_what_has_no_template_gives_none(document: object) -> None:
    """No version, no image, metadata and status, and values of wrong types."""
    assert list(pod_templates(document)) == []


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "places"),
    [
        ("argoproj.io/v1alpha1", "Rollout", {"template": POD}, ["spec.template"]),
        ("argoproj.io/v1alpha1", "Experiment", {"templates": [{"template": POD}]}, ["spec.templates[0].template"]),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"template": {"spec": {"template": POD}}}] * 2},
            [f"spec.replicatedJobs[{index}].template.spec.template" for index in (0, 1)],
        ),
        (
            "ray.io/v1",
            "RayJob",
            {
                "submitterPodTemplate": POD,
                "rayClusterSpec": {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [{"template": POD}]},
            },
            [
                "spec.submitterPodTemplate",
                "spec.rayClusterSpec.headGroupSpec.template",
                "spec.rayClusterSpec.workerGroupSpecs[0].template",
            ],
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"template": POD}}},
            ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"],
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": POD, "workerTemplate": POD}},
            ["spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"],
        ),
        ("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"template": POD}]}, ["spec.tasks[0].template"]),
        ("keda.sh/v1alpha1", "ScaledJob", {"jobTargetRef": {"template": POD}}, ["spec.jobTargetRef.template"]),
        ("agones.dev/v1", "Fleet", {"template": {"spec": {"template": POD}}}, ["spec.template.spec.template"]),
        ("apps.kruise.io/v1alpha1", "CloneSet", {"template": POD}, ["spec.template"]),
        (
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {"components": [{"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD}}}]},
            ["spec.components[0].template.spec.template"],
        ),
    ],
)
def test_custom_kinds_are_read_wherever_they_have_templates(
    api_version: str, kind: str, spec: object, places: list[str]
) -> None:
    """Each PodSpec below `spec` is a template's, and words may be written there."""
    found = list(pod_templates({"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}))
    assert [each.place for each in found] == places
    assert all(each.takes_words and each.template == POD for each in found)


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "place"),
    [
        ("serving.knative.dev/v1", "Service", {"template": POD}, "spec.template"),
        ("serving.knative.dev/v1", "Revision", POD["spec"], "spec"),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": POD["spec"]}, "spec.predictor"),
        ("argoproj.io/v1alpha1", "Workflow", {"templates": [{"containerSet": POD["spec"]}]},
         "spec.templates[0].containerSet"),
    ],
)  # fmt: skip
def test_some_places_take_no_words(api_version: str, kind: str, spec: object, place: str) -> None:
    """Knative refuses them, and a PodSpec without metadata beside it has nowhere to record them."""
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}
    [found] = pod_templates(document)
    assert (found.place, found.takes_words) == (place, False)
    assert found.template["spec"] == POD["spec"]
