"""Writes into the webhook's own configuration whom the API server trusts.

Needs the verbs get and patch on that MutatingWebhookConfiguration alone.
"""

import base64

import msgspec

from extender.cluster.client import STRATEGIC_MERGE_PATCH, ClusterClient, ClusterRefused, decode_answer
from extender.kubernetes.admissionregistration_v1 import (
    MutatingWebhook,
    MutatingWebhookConfiguration,
    WebhookClientConfig,
)

_COLLECTION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CONFIGURATION = msgspec.json.Decoder(MutatingWebhookConfiguration)


class WebhookConfiguration:
    """One MutatingWebhookConfiguration, by its name; all of its webhooks are ours."""

    def __init__(self, client: ClusterClient, name: str) -> None:
        self.name = name
        self._client = client
        self._path = f"{_COLLECTION}/{name}"

    async def publish(self, bundle: bytes) -> bool:
        """Makes each webhook trust `bundle` (PEM). Returns whether that changed anything.

        Does nothing if there is no such configuration.

        Raises:
            ClusterError: it could not be read or changed.
        """
        try:
            answer = await self._client.get(self._path)
        except ClusterRefused as exc:
            if exc.status == 404:
                return False
            raise
        found = decode_answer(_CONFIGURATION, answer, "MutatingWebhookConfiguration")
        wanted = base64.b64encode(bundle).decode()
        webhooks = [
            MutatingWebhook(webhook.name, WebhookClientConfig(ca_bundle=wanted))
            for webhook in found.webhooks
            if webhook.client_config.ca_bundle != wanted
        ]
        if not webhooks:
            return False
        # The API server merges webhooks by name, so that those of other fields stay as they are.
        body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "webhooks": webhooks}
        await self._client.send("PATCH", self._path, msgspec.json.encode(body), STRATEGIC_MERGE_PATCH)
        return True
