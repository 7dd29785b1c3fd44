"""The fields that we read and write of three small API groups: the webhook's own configuration, rights, and leases.

Source: k8s.io/api/admissionregistration/v1, k8s.io/api/authorization/v1 and k8s.io/api/coordination/v1, types.go each.
"""

import msgspec

from extender.kubernetes.apps_v1 import LabelSelector
from extender.kubernetes.meta_v1 import VersionedMeta, Wire

WEBHOOK_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_POD_RESOURCES = frozenset(("pods", "*", "*/*"))


class ServiceReference(Wire, frozen=True):
    namespace: str = ""
    name: str = ""


class WebhookClientConfig(Wire, frozen=True, omit_defaults=True):
    """admissionregistration/v1 WebhookClientConfig: whom the API server calls, and whom it trusts when it does."""

    ca_bundle: bytes | None = None
    url: str | None = None
    service: ServiceReference | None = None


class RuleWithOperations(Wire, frozen=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class MatchCondition(Wire, frozen=True):
    name: str = ""
    expression: str = ""


class MutatingWebhook(Wire, frozen=True, omit_defaults=True):
    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_conditions: tuple[MatchCondition, ...] | None = None
    timeout_seconds: int | None = None

    @property
    def is_for_new_pods(self) -> bool:
        """Whether the API server sends it new pods."""
        return any(
            not _POD_RESOURCES.isdisjoint(rule.resources)
            and not {"CREATE", "*"}.isdisjoint(rule.operations)
            and not {"", "*"}.isdisjoint(rule.api_groups)
            for rule in self.rules or ()
        )


class MutatingWebhookConfiguration(Wire, frozen=True):
    metadata: VersionedMeta = VersionedMeta()
    webhooks: tuple[MutatingWebhook, ...] | None = None


class LeaseSpec(Wire, frozen=True):
    """coordination/v1 LeaseSpec; times are RFC 3339 texts with microseconds, an empty holder means that it is free."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True):
    metadata: VersionedMeta = VersionedMeta()
    spec: LeaseSpec | None = None


class ResourceAttributes(Wire, frozen=True):
    """authorization/v1 ResourceAttributes: a right.

    An empty group is that of core/v1; an empty namespace or name means all. As text it is what a person reads.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        words = (self.verb, self.resource, self.name, self.namespace and f"in {self.namespace}")
        return " ".join(filter(None, words))


class SelfSubjectAccessReviewSpec(Wire, frozen=True):
    resource_attributes: ResourceAttributes


class SubjectAccessReviewStatus(Wire, frozen=True):
    allowed: bool = False


class SelfSubjectAccessReview(Wire, frozen=True):
    """authorization/v1 SelfSubjectAccessReview; the API server adds the status."""

    spec: SelfSubjectAccessReviewSpec
    status: SubjectAccessReviewStatus | None = None
    api_version: str = "authorization.k8s.io/v1"
    kind: str = "SelfSubjectAccessReview"


_ENCODER = msgspec.json.Encoder()


def encode_access_review(attributes: ResourceAttributes) -> bytes:
    """The request whether the client that sends it may do this."""
    return _ENCODER.encode(SelfSubjectAccessReview(SelfSubjectAccessReviewSpec(attributes)))
