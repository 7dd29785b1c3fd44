"""Asks a replica for a review, as the API server does."""

import base64
from typing import Any

import msgspec

from testbed.memory_http import Client
from testbed.memory_network import Network
from tests.worlds.plan import Manifest
from tests.worlds.replicas import Replica


class Answer(msgspec.Struct, frozen=True):
    """What a review answers."""

    allowed: bool
    patch: Any
    warnings: tuple[str, ...]


class Reviewer:
    """Sends reviews of new pods to one replica."""

    def __init__(self, network: Network, replica: Replica) -> None:
        self._client = Client(network, "invariants")
        self._url = f"http://{replica.address}:8443/admission/pods"

    async def review(self, pod: Manifest, uid: str) -> Answer | None:
        """The answer to a dry run of the pod's creation; None if there is none."""
        metadata = {
            key: value
            for key, value in pod["metadata"].items()
            if key not in ("uid", "resourceVersion", "creationTimestamp")
        }
        request = {
            "uid": uid,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": metadata["namespace"],
            "name": metadata.get("name", ""),
            "userInfo": {"username": "invariants"},
            "object": pod | {"metadata": metadata},
            "dryRun": True,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        try:
            response = await self._client.request(
                "POST", self._url, msgspec.json.encode(review), {"content-type": "application/json"}, timeout_seconds=10
            )
        except (ConnectionError, TimeoutError):
            return None
        finally:
            self._client.close()
        if response.status != 200:
            return None
        answer = msgspec.json.decode(response.body)["response"]
        patch = msgspec.json.decode(base64.b64decode(answer["patch"])) if "patch" in answer else None
        return Answer(answer["allowed"], patch, tuple(answer.get("warnings") or ()))
