"""Pods that are created as a dry run: they go through all admission, and nothing is stored.

Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

from collections.abc import Mapping

import msgspec

from extender.cluster.client import TIMEOUT_SECONDS, ClusterClient, decode_answer
from extender.placement.patch import Json, JsonObject

# A host that cannot exist (RFC 6761), so that a webhook never knows the image, and leaves the gate of a policy.
_IMAGE = "multiarch-extender.invalid/proof:1"
_POD: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(dict)


def restricted_pod(
    *, annotations: Mapping[str, str] | None = None, spec: Mapping[str, Json] | None = None
) -> JsonObject:
    """A pod that the Pod Security standard `restricted` and most quotas admit."""
    amount: JsonObject = {"cpu": "1m", "memory": "1Mi"}
    restricted: JsonObject = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "multiarch-extender-proof-", "annotations": dict(annotations or {})},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "proof",
                    "image": _IMAGE,
                    "resources": {"requests": amount, "limits": amount},
                    "securityContext": restricted,
                }
            ],
            **(spec or {}),
        },
    }


async def create_dry(
    client: ClusterClient, namespace: str, pod: JsonObject, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> JsonObject:
    """The pod as it would be stored. Needs the verb create on pods in `namespace`.

    Raises:
        ClusterError: it was refused, or the API server could not be asked.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    answer = await client.send("POST", path, msgspec.json.encode(pod), timeout_seconds=timeout_seconds)
    return decode_answer(_POD, answer, "Pod")
