"""Pods that wait for our scheduling gate to be taken off: what to watch, how to read one, and where to change it.

The label's removal takes a pod out of the watch, so the watch has what is held and nothing else.
"""

from collections.abc import AsyncIterator

import msgspec

from extender.cluster.client import METADATA, STRATEGIC_MERGE_PATCH, ClusterClient, ClusterRefused, decode_answer
from extender.cluster.listwatch import Resource
from extender.cluster.views import PENDING, PODS
from extender.cluster.workload_lists import list_documents
from extender.kubernetes.core_v1 import StoredPod
from extender.placement.gate import GATE, GATED_LABEL

_LABELLED = {"labelSelector": f"{GATED_LABEL}=true"}
HELD_PODS = Resource(name="held-pods", path=PODS, query={**_LABELLED, "fieldSelector": PENDING})
"""Pods with our label that no scheduler has placed."""
_TIMEOUT_SECONDS = 10.0
_MAX_BODY_BYTES = 8 << 20  # a pod has 1.5 MiB in etcd, as JSON a few times that


_POD = msgspec.json.Decoder(StoredPod)


def is_held(pod: StoredPod) -> bool:
    """Whether our gate holds the pod; the label alone holds nothing."""
    return any(gate.name == GATE for gate in (pod.spec and pod.spec.scheduling_gates) or ())


def is_held_by_others(pod: StoredPod) -> bool:
    """Whether another gate than ours holds the pod too, so that waiting for ours costs it nothing."""
    return any(gate.name != GATE for gate in (pod.spec and pod.spec.scheduling_gates) or ())


def is_labelled(pod: StoredPod) -> bool:
    """Whether the pod has the label of held pods, held or not."""
    return GATED_LABEL in (pod.metadata.labels or {})


def decode_stored_pod(document: bytes | msgspec.Raw) -> StoredPod:
    """Reads the pod. Raises ClusterError if it is none."""
    return decode_answer(_POD, document, "pod")


async def list_gated_pods(client: ClusterClient, namespace: str = "") -> list[StoredPod]:
    """The pods of the namespace, or of all, that have our gate or its label; for a clean-up that must find all.

    Raises ClusterError.
    """
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else PODS
    found: dict[str, StoredPod] = {}
    for query in ({"fieldSelector": PENDING}, _LABELLED):
        async for document in list_documents(client, path, query):
            pod = decode_stored_pod(document)
            if is_held(pod) or is_labelled(pod):
                found[pod.key] = pod
    return list(found.values())


async def unlabelled_pods(client: ClusterClient) -> AsyncIterator[msgspec.Raw]:
    """Yields the pods that our gate holds, that no scheduler has placed, and that lack the label.

    Raises ClusterError.
    """
    query = {"fieldSelector": PENDING, "labelSelector": f"!{GATED_LABEL}"}
    async for document in list_documents(client, PODS, query):
        if is_held(decode_stored_pod(document)):
            yield document


async def read_pod(client: ClusterClient, namespace: str, name: str) -> bytes | None:
    """The undecoded pod; None if there is none. Raises ClusterError."""
    try:
        return await client.get(_path(namespace, name), timeout_seconds=_TIMEOUT_SECONDS, body_bytes=_MAX_BODY_BYTES)
    except ClusterRefused as exc:
        if exc.status == 404:
            return None
        raise


async def patch_pod(client: ClusterClient, namespace: str, name: str, patch: bytes) -> None:
    """Changes the pod by a strategic merge patch. Raises ClusterError, ClusterRefused where the API server says no."""
    path = _path(namespace, name)
    await client.send("PATCH", path, patch, STRATEGIC_MERGE_PATCH, accept=METADATA, timeout_seconds=_TIMEOUT_SECONDS)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
