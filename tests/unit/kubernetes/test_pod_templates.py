"""Where the pod templates and images of documents are, and what is given later."""

from typing import Any

import pytest

from extender.kubernetes.pod_templates import is_given, is_policy, node_of, pod_templates, pods_of, unread_images

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
    assert [each.field_path for each in found] == [f"spec.{place}" for place in places.split()]
    assert all(each.takes_constraints and each.template == POD for each in found)


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "place"),
    [
        ("serving.knative.dev/v1", "Service", {"template": POD}, "spec.template"),
        ("serving.knative.dev/v1", "Revision", POD["spec"], "spec"),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": POD["spec"]}, "spec.predictor"),
        ("argoproj.io/v1alpha1", "Workflow", {"templates": [{"containerSet": POD["spec"]}]},
         "spec.templates[0].containerSet"),
        ("apps.kruise.io/v1alpha1", "SidecarSet", {"selector": {}, **POD["spec"]}, "spec"),
        ("apps.kruise.io/v1alpha1", "SidecarSet", {"initContainers": [{"image": "a"}], **POD["spec"]}, "spec"),
        ("example.com/v1", "Wrapper", {"objects": [{"apiVersion": "v1", "kind": "Sidecars", **POD}]},
         "spec.objects[0]"),
    ],
)  # fmt: skip
def test_some_places_take_no_words(api_version: str, kind: str, spec: object, place: str) -> None:
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}
    [found] = pod_templates(document)
    assert (found.field_path, found.takes_constraints) == (place, False)
    assert found.template["spec"]["containers"] == POD["spec"]["containers"]


def test_a_pod_within_an_object_takes_words() -> None:
    """As does a template that says no kind, of whatever kind its object is."""
    for inner in ({"apiVersion": "v1", "kind": "Pod", **POD}, POD):
        [found] = pod_templates({"apiVersion": "example.com/v1", "kind": "Wrapper", "spec": {"components": [inner]}})
        assert found.takes_constraints


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


NAMED = {"spec": {"containers": [{"name": "main", "image": "app"}]}}
LATER = ["", "auto", "$(IMAGE)", "${REGISTRY}/app:1", "{{ .Values.image }}", "REPLACE_ME", "REPLACE_ME:latest", "IMAGE",
         "example.com/IMAGE_NAME", "<your image>", "__IMAGE__", "%IMAGE%", "@IMAGE@", "ko://example.com/cmd/app",
         "YOUR-REGISTRY/APP", "#{image}#", None]  # fmt: skip
NOW = ["app", "Example.com/app", "app:TAG", "automatic", "h:5000/a/b:1@sha256:0", "MyApp", "a..b", "Not A Name"]


def thing(api_version: str, spec: object) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "Thing", "metadata": {"name": "it"}, "spec": spec}


LAID_OVER = [
    thing("kyverno.io/v1", {"rules": [{"mutate": {"patchStrategicMerge": {"spec": {"template": NAMED}}}}]}),
    thing("kyverno.io/v1", {"rules": [{"validate": {"pattern": NAMED}}]}),
    thing("policies.kyverno.io/v1alpha1", {"generate": {"data": NAMED}}),
    thing("mutations.gatekeeper.sh/v1", {"parameters": {"assign": {"value": NAMED}}}),
    thing("cli.kyverno.io/v1alpha1", {"values": NAMED}),
    thing("policy.open-cluster-management.io/v1", {"policy-templates": [NAMED]}),
    {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"object": NAMED}},
    {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "patches": [{"patch": NAMED}]},
    thing("kustomize.toolkit.fluxcd.io/v1", {"patchesStrategicMerge": [{"spec": {"template": NAMED}}]}),
    thing("trainer.kubeflow.org/v1alpha1", {"podTemplateOverrides": [NAMED]}),
    thing("apps.kruise.io/v1alpha1", {"topology": {"subsets": [{"patch": NAMED}]}}),
    thing("example.com/v1", {"anyPattern": [NAMED], "podPatch": NAMED, "overlays": NAMED, "override": NAMED}),
]


def test_what_is_laid_over_pods_is_no_template() -> None:
    """By the group of a policy or review, or by the key under which it stands."""
    for document in LAID_OVER:
        assert list(pod_templates(document)) == [], document
        assert pods_of(document) == []


def test_policies_are_told_from_workloads_by_their_groups() -> None:
    groups = ("kyverno.io/v1", "constraints.gatekeeper.sh/v1beta1", "apps/v1", "kyverno.io.example.com/v1", "v1")
    assert [is_policy(thing(group, {})) for group in groups] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("api_version", "beside", "image"),
    [
        ("example.com/v1", {"image": "main"}, "main"),
        ("example.com/v1", {"image": {"repository": "main", "tag": "1"}}, "main:1"),
        ("example.com/v1", {"image": {"registry": "h", "repository": "main", "digest": "sha256:0"}}, "h/main@sha256:0"),
        ("monitoring.coreos.com/v1", {"baseImage": "main"}, "main"),
        ("monitoring.coreos.com/v1", {}, ""),
        ("operator.victoriametrics.com/v1beta1", {"image": {"tag": "1"}}, ""),
    ],
)
def test_an_image_beside_the_containers_is_one_more(api_version: str, beside: dict[str, Any], image: str) -> None:
    """An operator makes a container of it; some have an image of their own, which nobody can know here."""
    [found] = pod_templates(thing(api_version, {"containers": [{"name": "side", "image": "sidecar"}], **beside}))
    assert [each["image"] for each in found.template["spec"]["containers"]] == ["sidecar", image]
    assert bool(found.missing) is not bool(image)


def test_a_container_whose_image_comes_later_is_named() -> None:
    for image in LATER:
        containers = [{"name": "main", **({} if image is None else {"image": image})}, {"image": "app"}]
        [found] = pod_templates({**thing("apps/v1", {"template": {"spec": {"containers": containers}}})})
        assert found.missing == ("main",), image
        assert found.gap == "partly given: at spec.template, container main gets an image later"
        assert not is_given(image)


def test_a_template_of_names_alone_is_partly_given() -> None:
    spec = {"containers": [{"name": "a"}], "initContainers": [{"resources": {}}]}
    [found] = pod_templates(thing("apps/v1", {"template": {"spec": spec}}))
    assert found.gap.endswith("containers a, initContainers[0] get an image later")


def test_a_reference_or_a_slip_of_one_is_no_placeholder() -> None:
    assert all(map(is_given, NOW))


CONTAINER = {"image": "app", "command": ["run"]}


@pytest.mark.parametrize(
    ("version", "spec", "path"),
    [
        ("argoproj.io/v1alpha1", {"templates": [{"name": "a"}, {"container": {"image": "app"}}]},
         "spec.templates[1].container"),
        ("tekton.dev/v1", {"steps": [{"name": "a", "image": "app", "script": "make"}]}, "spec.steps[0]"),
        ("monitoring.coreos.com/v1", {"image": "app", "replicas": 2}, "spec"),
        ("image.toolkit.fluxcd.io/v1beta2", {"image": "ghcr.io/a/b", "interval": "1m"}, ""),
        ("apiextensions.k8s.io/v1", {"versions": [{"schema": {"properties": {"containers": {"type": "array"}}}}]}, ""),
        ("postgresql.cnpg.io/v1", {"imageName": "ghcr.io/a/postgresql:16"}, "spec"),
        ("ceph.rook.io/v1", {"cephVersion": {"image": "quay.io/ceph/ceph:v18"}}, "spec.cephVersion"),
        ("kubevirt.io/v1", {"template": {"spec": {"volumes": [{"containerDisk": {"image": "quay.io/a/disk"}}]}}},
         "spec.template.spec.volumes[0].containerDisk"),
        ("example.com/v1", {"image": {"repository": "a"}}, "spec"),
        ("example.com/v1", {"sidecarImage": "a/b:1", "template": {"spec": {"containers": [CONTAINER]}}}, "spec"),
        ("example.com/v1", {"image": "a", "containers": [CONTAINER]}, ""),
        ("example.com/v1", {"image": "https://example.com/a.png", "heroImage": "a.png"}, ""),
        ("kyverno.io/v1", {"image": "a"}, ""),
        ("v1", CONTAINER, ""),
        ("example.com/v1", None, ""),
        ("example.com/v1", {"containers": 3, "image": ["app"]}, ""),
        ("sparkoperator.k8s.io/v1beta2", {"driver": {"image": "spark:3"}}, "spec.driver"),
        ("sparkoperator.k8s.io/v1beta2", {"driver": {"sidecars": [{"name": "a", "image": "b"}]}},
         "spec.driver.sidecars[0]"),
        ("sparkoperator.k8s.io/v1beta2", {"schedule": "@daily", "template": {"image": "spark:3"}}, "spec.template"),
        ("nodemaintenance.x-k8s.io/v1", {"image": "a"}, "spec"),
        ("snapshot.storage.k8s.io/v1", {"image": "a"}, "spec"),
        ("k8s.io.example.com/v1", {"image": "a"}, "spec"),
        ("storage.k8s.io/v1", {"image": "a"}, ""),
        ("flowcontrol.apiserver.k8s.io/v1", {"image": "a"}, ""),
        ("rbac.authorization.k8s.io/v1", {"image": "a"}, ""),
    ],
    ids=["Workflow", "Task", "Prometheus", "an image to follow", "a definition", "a database", "storage",
         "a virtual machine", "values", "beside a template", "read", "a picture", "a policy", "core",
         "no spec", "other types", "a driver", "its sidecars", "a scheduled one", "a group that ends as they do",
         "one below one of Kubernetes", "one that begins so", "storage of Kubernetes", "priorities", "roles"],
)  # fmt: skip
def test_images_at_an_unknown_place_are_found(version: str, spec: object, path: str) -> None:
    assert unread_images({"apiVersion": version, "kind": "Thing", "spec": spec}) == path
