"""Custom resources whose containers no report judges."""

import pytest

from extender.kubernetes.pod_templates import unread_containers

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
        ("v1", CONTAINER, ""),
        ("example.com/v1", None, ""),
        ("example.com/v1", {"containers": 3, "image": ["app"]}, ""),
    ],
    ids=["Workflow", "Task", "Prometheus", "an image to follow", "a definition", "core",
         "no spec", "other types"],
)  # fmt: skip
def test_containers_at_an_unknown_place_are_found(version: str, spec: object, path: str) -> None:
    """By what a container has besides its image; what a report reads, and objects of Kubernetes itself, have none."""
    assert unread_containers({"apiVersion": version, "kind": "Thing", "spec": spec}) == path
