"""Realistic requests: pods of about 3 KB, node names of cloud length, whole nodes of about 11 KB."""

from typing import Any

import msgspec

REGISTRY = "registry.example.com"
ARCHITECTURES = ("amd64", "arm64")


def node_name(index: int) -> str:
    """A name as long as a cloud gives it."""
    return f"gke-production-pool-{index % 7}-4f3a2b1c-{index:04x}"


def architecture(index: int) -> str:
    """Every second node is arm64."""
    return ARCHITECTURES[index % 2]


def pod(images: tuple[str, ...]) -> dict[str, Any]:
    """A pod as an API server holds it, with one container per image."""
    containers = [
        {
            "name": f"container-{index}",
            "image": image,
            "args": ["--config=/etc/app/config.yaml", f"--listen=:{8000 + index}", "--log-format=json"],
            "ports": [{"name": "http", "containerPort": 8000 + index, "protocol": "TCP"}],
            "env": [{"name": f"SETTING_{number}", "value": f"value-of-setting-{number}"} for number in range(6)],
            "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "256Mi"}},
            "volumeMounts": [
                {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
            ],
            "livenessProbe": {"httpGet": {"path": "/livez", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"}, "periodSeconds": 5},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        for index, image in enumerate(images)
    ]
    return {
        "metadata": {
            "name": "checkout-7c9f8d6b5-x2x4z",
            "generateName": "checkout-7c9f8d6b5-",
            "namespace": "shop",
            "uid": "4d3c2b1a-0000-4000-8000-000000000001",
            "resourceVersion": "123456789",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "checkout", "pod-template-hash": "7c9f8d6b5", "team": "payments"},
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": "0" * 64},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "checkout-7c9f8d6b5",
                    "controller": True,
                    "uid": "0",
                }
            ],
        },
        "spec": {
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "containers": containers,
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "checkout",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
                {
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
            ],
            "priority": 0,
            "enableServiceLinks": True,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def node(index: int) -> dict[str, Any]:
    """A whole node of about 11 KB, most of it the images it holds, as in a cluster that has run for a while."""
    labels = {
        "kubernetes.io/arch": architecture(index),
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": node_name(index),
        "topology.kubernetes.io/zone": f"eu-central-1{'abc'[index % 3]}",
        "node.kubernetes.io/instance-type": "m7g.2xlarge",
    }
    images = [
        {
            "names": [
                f"{REGISTRY}/team-{number}/service@sha256:{number:064x}",
                f"{REGISTRY}/team-{number}/service:1.{number}.0",
            ],
            "sizeBytes": 100_000_000 + number,
        }
        for number in range(50)
    ]
    return {
        "metadata": {
            "name": node_name(index),
            "uid": f"{index:036d}",
            "labels": labels,
            "annotations": {"note": "x" * 500},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"aws:///eu-central-1a/i-{index:017x}"},
        "status": {
            "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "allocatable": {"cpu": "8", "memory": "31Gi", "pods": "110"},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
            ],
            "nodeInfo": {"architecture": architecture(index), "operatingSystem": "linux", "kubeletVersion": "v1.36.3"},
            "images": images,
        },
    }


def by_names(images: tuple[str, ...], nodes: int) -> bytes:
    """ExtenderArgs with node names (`nodeCacheCapable: true`)."""
    names = [node_name(index) for index in range(nodes)]
    return msgspec.json.encode({"Pod": pod(images), "Nodes": None, "NodeNames": names})


def by_nodes(images: tuple[str, ...], nodes: int) -> bytes:
    """ExtenderArgs with whole nodes (`nodeCacheCapable: false`)."""
    items = [node(index) for index in range(nodes)]
    return msgspec.json.encode({"Pod": pod(images), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})


def review(images: tuple[str, ...]) -> bytes:
    """The AdmissionReview of the pod's creation."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "namespace": "shop",
                "operation": "CREATE",
                "userInfo": {
                    "username": "system:serviceaccount:kube-system:replicaset-controller",
                    "groups": ["system:authenticated"],
                },
                "object": {"kind": "Pod", "apiVersion": "v1", **pod(images)},
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }
    )
