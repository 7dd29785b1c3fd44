"""Custom resources whose images no report judges."""

import pytest

from extender.kubernetes.pod_templates import unread_images

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
    ],
    ids=["Workflow", "Task", "Prometheus", "an image to follow", "a definition", "a database", "storage",
         "a virtual machine", "values", "beside a template", "read", "a picture", "a policy", "core",
         "no spec", "other types"],
)  # fmt: skip
def test_images_at_an_unknown_place_are_found(version: str, spec: object, path: str) -> None:
    """By their keys; what a report reads, and objects of Kubernetes itself, have none."""
    assert unread_images({"apiVersion": version, "kind": "Thing", "spec": spec}) == path
