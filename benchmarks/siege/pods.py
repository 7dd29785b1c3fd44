"""The pods of the siege, their reviews and their filter requests."""

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.siege.answers import NAMES

HONEST_NAMESPACES, BESIEGING_NAMESPACES = 10, 5


def honest_namespace(number: int) -> str:
    """Returns the name of one of the honest namespaces."""
    return f"team-{number % HONEST_NAMESPACES}"


def besieging_namespace(number: int) -> str:
    """Returns the name of one of the namespaces that attack."""
    return f"besieger-{number % BESIEGING_NAMESPACES}"


def new_pod(namespace: str, number: int, images: Sequence[str], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a pod of about 3 KB, the `number`-th of all: its name, uid and template are its own."""
    serial = f"{number:08x}"
    pod = payloads.pod(tuple(images), serial=serial, template=serial)
    pod["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{serial}"}
    if secrets:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in secrets]
    return pod


def review_of(pod: dict[str, Any]) -> bytes:
    """Returns the AdmissionReview of the pod's creation."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": pod["metadata"]["uid"],
                "kind": kind,
                "resource": resource,
                "namespace": pod["metadata"]["namespace"],
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
                "object": {"kind": "Pod", "apiVersion": "v1", **pod},
                "oldObject": None,
                "dryRun": False,
            },
        }
    )


def filter_of(pod: dict[str, Any]) -> bytes:
    """Returns kube-scheduler's filter request about the pod and all nodes, by name."""
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": NAMES})
