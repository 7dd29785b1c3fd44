"""The fields of admissionregistration.k8s.io/v1 that the webhook reads of its own configuration, and writes.

Source: k8s.io/api/admissionregistration/v1/types.go.
"""

from extender.kubernetes.meta_v1 import VersionedMeta
from extender.kubernetes.wire import Wire


class ServiceReference(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 ServiceReference."""

    name: str = ""
    namespace: str = ""
    path: str | None = None


class WebhookClientConfig(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 WebhookClientConfig: how the API server calls a webhook; `ca_bundle` is base64."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str | None = None


class MutatingWebhook(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 MutatingWebhook."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()


class MutatingWebhookConfiguration(Wire, frozen=True):
    """admissionregistration/v1 MutatingWebhookConfiguration."""

    metadata: VersionedMeta = VersionedMeta()
    webhooks: tuple[MutatingWebhook, ...] = ()
