"""Mappings that have containers and are no whole pods: policies, patches, and pods that somebody completes."""

from typing import Any

import pytest

from extender.kubernetes.pod_templates import is_given, is_policy, pod_templates, pods_of

POD = {"spec": {"containers": [{"name": "main", "image": "app"}]}}
LATER = ["", "auto", "$(IMAGE)", "${REGISTRY}/app:1", "{{ .Values.image }}", "REPLACE_ME", "REPLACE_ME:latest", "IMAGE",
         "example.com/IMAGE_NAME", "<your image>", "__IMAGE__", "%IMAGE%", "@IMAGE@", "ko://example.com/cmd/app",
         "YOUR-REGISTRY/APP", "#{image}#", None]  # fmt: skip
NOW = ["app", "Example.com/app", "app:TAG", "automatic", "h:5000/a/b:1@sha256:0", "MyApp", "a..b", "Not A Name"]


def thing(api_version: str, spec: object) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "Thing", "metadata": {"name": "it"}, "spec": spec}


LAID_OVER = [
    thing("kyverno.io/v1", {"rules": [{"mutate": {"patchStrategicMerge": {"spec": {"template": POD}}}}]}),
    thing("kyverno.io/v1", {"rules": [{"validate": {"pattern": POD}}]}),
    thing("policies.kyverno.io/v1alpha1", {"generate": {"data": POD}}),
    thing("mutations.gatekeeper.sh/v1", {"parameters": {"assign": {"value": POD}}}),
    thing("cli.kyverno.io/v1alpha1", {"values": POD}),
    thing("policy.open-cluster-management.io/v1", {"policy-templates": [POD]}),
    {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"object": POD}},
    {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "patches": [{"patch": POD}]},
    thing("kustomize.toolkit.fluxcd.io/v1", {"patchesStrategicMerge": [{"spec": {"template": POD}}]}),
    thing("trainer.kubeflow.org/v1alpha1", {"podTemplateOverrides": [POD]}),
    thing("apps.kruise.io/v1alpha1", {"topology": {"subsets": [{"patch": POD}]}}),
    thing("example.com/v1", {"anyPattern": [POD], "podPatch": POD, "overlays": POD, "override": POD}),
]


def test_what_is_laid_over_pods_is_no_template() -> None:
    """By the group of a policy or review, or by the key under which it stands."""
    for document in LAID_OVER:
        assert list(pod_templates(document)) == [], document
        assert pods_of(document) == []


def test_policies_are_told_from_workloads_by_their_groups() -> None:
    """Their number is told, as somebody may have meant them as workloads."""
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
    """With its template; init containers and those without a name too."""
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
