"""Where the pod templates of documents are."""

import pytest

from extender.kubernetes.pod_templates import pod_templates

POD = {"spec": {"containers": [{"image": "app"}]}}
PATHS = {
    "v1 Pod": "",
    "v1 PodTemplate": "template",
    "v1 ReplicationController": "spec template",
    "apps/v1 Deployment": "spec template",
    "apps/v1 StatefulSet": "spec template",
    "apps/v1 DaemonSet": "spec template",
    "apps/v1 ReplicaSet": "spec template",
    "batch/v1 Job": "spec template",
    "batch/v1 CronJob": "spec jobTemplate spec template",
}
GIVEN: dict[str, object] = {"template": POD}
RAY = {"headGroupSpec": GIVEN, "workerGroupSpecs": [GIVEN]}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": GIVEN}


@pytest.mark.parametrize(("named", "path"), PATHS.items())
def test_each_kind_has_its_template_at_its_path(named: str, path: str) -> None:
    document: dict[str, object] = {**POD}
    for step in reversed(path.split()):
        document = {step: document}
    api_version, kind = named.split()
    made = {**document, "apiVersion": api_version, "kind": kind, "metadata": {"name": "it", "namespace": "shop"}}
    [found] = pod_templates(made)
    assert (found.path, found.item, str(found)) == (tuple(path.split()), (), f"{kind} shop/it")
    assert found.template["spec"] == POD["spec"]


def test_the_items_of_lists_are_found_and_lists_in_lists_are_not() -> None:
    """A List, a DeploymentList and a ResourceList; kubectl accepts no list in a list."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "run-"}, "spec": {"template": POD}}
    for kind in ("List", "JobList", "ResourceList"):
        inner = {"kind": "List", "items": [job]}
        [found] = pod_templates({"kind": kind, "items": [{"kind": "Service"}, job, inner]})
        assert (found.item, found.path, str(found)) == (("items", 1), ("items", 1, "spec", "template"), "Job run-")


WITHOUT: list[object] = [
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
]


def test_what_has_no_template_gives_none() -> None:
    """No version, no image, metadata and status, and values of wrong types."""
    for document in WITHOUT:
        assert list(pod_templates(document)) == [], document


CUSTOM: dict[str, tuple[dict[str, object], str]] = {
    "argoproj.io/v1alpha1 Rollout": (GIVEN, "template"),
    "argoproj.io/v1alpha1 Experiment": ({"templates": [GIVEN]}, "templates[0].template"),
    "jobset.x-k8s.io/v1alpha2 JobSet": (
        {"replicatedJobs": [{"template": {"spec": GIVEN}}] * 2},
        "replicatedJobs[0].template.spec.template replicatedJobs[1].template.spec.template",
    ),
    "ray.io/v1 RayJob": (
        {"submitterPodTemplate": POD, "rayClusterSpec": RAY},
        "submitterPodTemplate rayClusterSpec.headGroupSpec.template rayClusterSpec.workerGroupSpecs[0].template",
    ),
    "kubeflow.org/v1 PyTorchJob": (
        {"pytorchReplicaSpecs": {"Master": GIVEN, "Worker": GIVEN}},
        "pytorchReplicaSpecs.Master.template pytorchReplicaSpecs.Worker.template",
    ),
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": (
        {"leaderWorkerTemplate": {"leaderTemplate": POD, "workerTemplate": POD}},
        "leaderWorkerTemplate.leaderTemplate leaderWorkerTemplate.workerTemplate",
    ),
    "batch.volcano.sh/v1alpha1 Job": ({"tasks": [GIVEN]}, "tasks[0].template"),
    "keda.sh/v1alpha1 ScaledJob": ({"jobTargetRef": GIVEN}, "jobTargetRef.template"),
    "agones.dev/v1 Fleet": ({"template": {"spec": GIVEN}}, "template.spec.template"),
    "apps.kruise.io/v1alpha1 CloneSet": (GIVEN, "template"),
    "workload.codeflare.dev/v1beta2 AppWrapper": (
        {"components": [{"template": JOB}]}, "components[0].template.spec.template"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("named", "spec", "places"), [(named, *each) for named, each in CUSTOM.items()], ids=CUSTOM)
def test_custom_kinds_are_read_wherever_they_have_templates(named: str, spec: object, places: str) -> None:
    """Each PodSpec below `spec` is a template's, and words may be written there."""
    api_version, kind = named.split()
    found = list(pod_templates({"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}))
    assert [each.place for each in found] == [f"spec.{place}" for place in places.split()]
    assert all(each.takes_constraints and each.template == POD for each in found)


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
    assert (found.place, found.takes_constraints) == (place, False)
    assert found.template["spec"] == POD["spec"]
