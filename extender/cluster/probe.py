"""The probe: a pod that is created as a dry run. It goes through all admission, and nothing is stored.

Only the API server knows whether it reaches the webhook and applies the policy: with `failurePolicy: Ignore` it says
nothing of a webhook that it does not find, or does not trust.
Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

import msgspec

from extender.cluster.client import ClusterClient, decode_answer
from extender.kubernetes.documents import JsonObject, map_at, value_at
from extender.placement.annotations import ADDED, MODE, REASON, Mode
from extender.placement.gate import GATED, GATED_LABEL, LABELS_PATH, PROBE_LABEL, is_gated

PROBE_LABELS = {PROBE_LABEL: "true"}
"""By which a binding can be for probes alone."""

_TIMEOUT_SECONDS = 40.0  # more than the 30 s that a webhook may take at most
# A host that cannot exist (RFC 6761), so that nothing is asked that anybody has.
_IMAGE = "multiarch-extender.invalid/probe:1"
_POD: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(dict)


def probe_pod() -> JsonObject:
    """A pod that the Pod Security standard `restricted` and most quotas admit, and that is not only observed."""
    amount: JsonObject = {"cpu": "1m", "memory": "1Mi"}
    restricted: JsonObject = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container: JsonObject = {
        "name": "probe",
        "image": _IMAGE,
        "resources": {"requests": amount, "limits": amount},
        "securityContext": restricted,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "multiarch-extender-probe-",
            "labels": {**PROBE_LABELS},
            "annotations": {MODE: Mode.ENFORCE.value},
        },
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }


async def send_probe(client: ClusterClient, namespace: str) -> JsonObject:
    """The probe as it would be stored in `namespace`. Needs the verb create on pods there.

    Raises:
        ClusterError: it was refused, or the API server could not be asked.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    answer = await client.send("POST", path, msgspec.json.encode(probe_pod()), timeout_seconds=_TIMEOUT_SECONDS)
    return decode_answer(_POD, answer, "Pod")


def is_held(probe: JsonObject) -> bool:
    """Whether the probe came back with our gate and its label, by which the gate controller finds pods."""
    return is_gated(probe) and value_at(probe, *LABELS_PATH, GATED_LABEL) == GATED


def is_reviewed(probe: JsonObject) -> bool:
    """Whether the webhook has seen the probe: unlike the policy it names the image, or adds something."""
    annotations = map_at(probe, "metadata", "annotations")
    return _IMAGE in str(annotations.get(REASON)) or ADDED in annotations
