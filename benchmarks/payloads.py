"""Realistic requests: pods of about 3 KB, node names of cloud length, whole nodes of about 11 KB."""

from collections.abc import Mapping
from typing import Any

import msgspec

from extender.placement.gate import GATE, GATED_LABEL

REGISTRY = "registry.example.com"
ARCHITECTURES = ("amd64", "arm64")
FIRST, SECOND = "00000001", "00000002"


def node_name(index: int) -> str:
    """Returns a node name as long as those of clouds."""
    return f"gke-production-pool-{index % 7}-4f3a2b1c-{index:04x}"


def architecture(index: int) -> str:
    """Returns the node's architecture: every second node is arm64."""
    return ARCHITECTURES[index % 2]


def resident_image(index: int) -> str:
    """Returns the name of a multi-arch image that a service loads at its start instead of asking a registry."""
    return f"{REGISTRY}/team-{index % 97}/service-{index}:1.{index}.0"


def pod(images: tuple[str, ...], *, serial: str = FIRST, template: str = FIRST, pool: str = "") -> dict[str, Any]:
    """Returns a pod as an API server stores it: the first image is the app's container, the others are sidecars.

    `serial`, of eight characters, differs between the pods of one Deployment, in name, uid and token volume, `template`
    between Deployments. With a `pool` it tolerates the taint `arch` of that value.
    """
    app = f"checkout-{template}"
    owner = f"{app}-7c9f8d6b5"
    token = f"kube-api-access-{serial}"
    return {
        "metadata": {
            "name": f"{owner}-{serial}",
            "generateName": f"{owner}-",
            "namespace": "shop",
            "uid": f"{template}-0000-4000-8000-0000{serial}",
            "resourceVersion": serial,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": app, "pod-template-hash": "7c9f8d6b5", "team": "payments"},
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": template * 8},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "controller": True, "uid": template}
            ],
        },
        "spec": {
            "volumes": [{"name": token, "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "containers": [
                _container(app, images[0], token),
                *(_sidecar(index, image, token) for index, image in enumerate(images[1:], 1)),
            ],
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "nodeSelector": {"example.com/shop": template},
            "serviceAccountName": "checkout",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                _tolerates("not-ready"),
                _tolerates("unreachable"),
                *([{"key": "arch", "operator": "Equal", "value": pool, "effect": "NoSchedule"}] if pool else []),
            ],
            "priority": 0,
            "enableServiceLinks": True,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _container(app: str, image: str, token: str) -> dict[str, Any]:
    return {
        **_sidecar(0, image, token),
        "name": app,
        "env": [{"name": f"SETTING_{number}", "value": f"{app}-setting-{number}"} for number in range(6)],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"}, "periodSeconds": 5},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _sidecar(index: int, image: str, token: str) -> dict[str, Any]:
    return {
        "name": f"sidecar-{index}",
        "image": image,
        "args": [f"--listen=:{8000 + index}", "--log-format=json"],
        "ports": [{"name": "http", "containerPort": 8000 + index, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _tolerates(what: str) -> dict[str, Any]:
    """Returns a toleration that the API server adds to every pod."""
    key = f"node.kubernetes.io/{what}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


def node(index: int) -> dict[str, Any]:
    """Returns a whole node of about 11 KB, most of it its list of images, as in a cluster that has run for a while."""
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


class Window(msgspec.Struct, frozen=True):
    """So many nodes of a cluster of `cluster` nodes, from the node `first` on, as kube-scheduler rotates them."""

    nodes: int
    first: int = 0
    cluster: int = 0

    def indices(self) -> list[int]:
        """Returns the indices of its nodes."""
        return [(self.first + index) % (self.cluster or self.nodes) for index in range(self.nodes)]


def by_names(created: Mapping[str, Any], window: Window) -> bytes:
    """Returns ExtenderArgs with node names (`nodeCacheCapable: true`)."""
    names = [node_name(index) for index in window.indices()]
    return msgspec.json.encode({"Pod": created, "Nodes": None, "NodeNames": names})


def by_nodes(created: Mapping[str, Any], window: Window) -> bytes:
    """Returns ExtenderArgs with whole nodes (`nodeCacheCapable: false`)."""
    items = [node(index) for index in window.indices()]
    return msgspec.json.encode({"Pod": created, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})


def held_pod(image: str, serial: str) -> bytes:
    """Returns a pod of that image as an API server stores it while our gate holds it."""
    held = pod((image,), serial=serial)
    held["metadata"]["labels"][GATED_LABEL] = "true"
    held["spec"]["schedulingGates"] = [{"name": GATE}]
    return msgspec.json.encode(held)


def review(images: tuple[str, ...], *, serial: str = FIRST, template: str = FIRST, pool: str = "") -> bytes:
    """Returns the AdmissionReview of the pod's creation, about 3 KB with two images."""
    return review_of(pod(images, serial=serial, template=template, pool=pool), f"705ab4f5-6393-11e8-b7cc-0000{serial}")


def review_of(created: Mapping[str, Any], uid: str) -> bytes:
    """Returns the AdmissionReview of a pod's creation."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": uid,
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "namespace": created["metadata"]["namespace"],
                "operation": "CREATE",
                "userInfo": {
                    "username": "system:serviceaccount:kube-system:replicaset-controller",
                    "groups": ["system:authenticated"],
                },
                "object": {"kind": "Pod", "apiVersion": "v1", **created},
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }
    )
