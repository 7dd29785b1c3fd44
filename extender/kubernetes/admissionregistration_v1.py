"""The fields of admissionregistration.k8s.io/v1 that the webhook reads of its own configuration, and writes.

Source: k8s.io/api/admissionregistration/v1/types.go.
"""

from extender.kubernetes.meta_v1 import VersionedMeta, Wire


class WebhookClientConfig(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 WebhookClientConfig: whom the API server trusts when it calls a webhook."""

    ca_bundle: bytes | None = None


class MutatingWebhook(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 MutatingWebhook."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()


class MutatingWebhookConfiguration(Wire, frozen=True):
    """admissionregistration/v1 MutatingWebhookConfiguration."""

    metadata: VersionedMeta = VersionedMeta()
    webhooks: tuple[MutatingWebhook, ...] = ()
