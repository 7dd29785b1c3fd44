"""Nodes and pods as the API server accepts them: fake nodes of any architecture, and pods with few fields.

This module is pure. A fake node has what kube-scheduler needs to see in a node without a kubelet.
"""

from collections.abc import Mapping, Sequence
from typing import Any

KubernetesObject = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

MADE_HERE = {"multiarch-extender.io/made-for": "tests"}
"""The label of every node and namespace made here. It marks what may be deleted in a cluster that has others."""

IMAGES_HELD = 50  # a kubelet reports at most so many by default


def fake_node(
    name: str,
    architecture: str,
    *,
    os: str = "linux",
    cpu: str = "8",
    memory: str = "32Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> KubernetesObject:
    """Returns a ready node of that architecture, to which pods can be bound although no kubelet runs it.

    The annotation is kwok's: in a cluster that has a node controller, kwok keeps the node ready.
    """
    room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    own = {"kubernetes.io/hostname": name, "kubernetes.io/arch": architecture, "kubernetes.io/os": os}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**own, **MADE_HERE, **(labels or {})},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake"}],
            "nodeInfo": _node_info(architecture, os),
        },
    }


def used_node(name: str, architecture: str) -> KubernetesObject:
    """Returns a fake node of about 11 KB, the size of one that has run for a while and lists its images."""
    made = fake_node(name, architecture, cpu="64", memory="256Gi")
    made["metadata"]["annotations"]["example.com/note"] = "x" * 500
    made["metadata"]["labels"] |= {"node.kubernetes.io/instance-type": "m7g.16xlarge"}
    made["status"]["images"] = [_held_image(number) for number in range(IMAGES_HELD)]
    return made


def pod(
    name: str,
    *images: str,
    namespace: str = "default",
    cpu: str = "100m",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> KubernetesObject:
    """Returns a pod with one container per image, each requesting `cpu`.

    `spec` adds fields to its spec or replaces them.

    Its grace period is zero: without a kubelet to confirm a pod's end, only such a pod is deleted when it is evicted.
    """
    containers = [
        {"name": f"container-{index}", "image": image, "resources": {"requests": {"cpu": cpu}}}
        for index, image in enumerate(images)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **(spec or {})},
    }


def kept_to(spec: Mapping[str, Any], label: str) -> list[str]:
    """Returns the sorted values of a node label to which a pod's nodeSelector, or else its required terms, keep it.

    Empty if they say nothing of the label.
    """
    if label in (spec.get("nodeSelector") or {}):
        return [spec["nodeSelector"][label]]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    items = [item for term in terms for item in term.get("matchExpressions") or () if item["key"] == label]
    return sorted({value for item in items if item["operator"] == "In" for value in item["values"]})


def workload(kind: str, template: KubernetesObject, replicas: int) -> KubernetesObject:
    """Returns a Deployment or a ReplicaSet of so many of that pod, whose name and namespace it gets.

    It does something only where its controller runs.
    """
    metadata, labels = template["metadata"], {"app": template["metadata"]["name"]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": {**metadata["labels"], **labels}, "annotations": metadata["annotations"]},
                "spec": template["spec"],
            },
        },
    }


def namespace(name: str, annotations: Mapping[str, str] | None = None) -> KubernetesObject:
    """Returns a namespace with these annotations."""
    metadata = {"name": name, "labels": dict(MADE_HERE), "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _held_image(number: int) -> KubernetesObject:
    repository = f"registry.example.com/team-{number}/service"
    names = [f"{repository}@sha256:{number:064x}", f"{repository}:1.{number}.0"]
    return {"names": names, "sizeBytes": 100_000_000 + number}


def _node_info(architecture: str, os: str) -> dict[str, str]:
    """Returns core/v1 NodeSystemInfo. All of its fields are required; only these two matter here."""
    unknown = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion")
    empty = dict.fromkeys((*unknown, "machineID", "osImage", "systemUUID"), "")
    return {**empty, "architecture": architecture, "operatingSystem": os}
