"""Writes into the webhook's own configuration whom the API server trusts and which path it calls.

Needs the verbs get and patch on that MutatingWebhookConfiguration alone.
"""

import base64
from urllib.parse import urlsplit, urlunsplit

import msgspec

from extender.cluster.client import STRATEGIC_MERGE_PATCH, ClusterClient, ClusterRefused
from extender.errors import ClusterError
from extender.kubernetes.admissionregistration_v1 import (
    MutatingWebhook,
    MutatingWebhookConfiguration,
    ServiceReference,
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

    async def publish(self, bundle: bytes, path: str) -> bool:
        """Makes each webhook trust `bundle` (PEM) and call `path`. Returns whether that changed anything.

        A webhook that is called by a URL keeps its host. Does nothing if there is no such configuration.

        Raises:
            ClusterError: it could not be read or changed.
        """
        try:
            found = _decode(await self._client.get(self._path))
        except ClusterRefused as exc:
            if exc.status == 404:
                return False
            raise
        wanted = base64.b64encode(bundle).decode()
        webhooks = [each for webhook in found.webhooks if (each := _changed(webhook, wanted, path)) != webhook]
        if not webhooks:
            return False
        # The API server merges webhooks by name, so that those of other fields stay as they are.
        body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "webhooks": webhooks}
        await self._client.send("PATCH", self._path, msgspec.json.encode(body), STRATEGIC_MERGE_PATCH)
        return True


def _changed(webhook: MutatingWebhook, bundle: str, path: str) -> MutatingWebhook:
    config = webhook.client_config
    if config.url:
        url = urlunsplit(urlsplit(config.url)._replace(path=path))
        return MutatingWebhook(webhook.name, WebhookClientConfig(url=url, ca_bundle=bundle))
    service = config.service or ServiceReference()
    service = ServiceReference(service.name, service.namespace, path)
    return MutatingWebhook(webhook.name, WebhookClientConfig(service=service, ca_bundle=bundle))


def _decode(document: bytes) -> MutatingWebhookConfiguration:
    try:
        return _CONFIGURATION.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ClusterError(f"the API server's answer is no MutatingWebhookConfiguration: {exc}") from exc
