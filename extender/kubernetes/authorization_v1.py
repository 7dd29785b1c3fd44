"""The fields of authorization.k8s.io/v1 by which a client learns its own rights.

Source: k8s.io/api/authorization/v1/types.go.
"""

import msgspec

from extender.kubernetes.wire import Wire


class ResourceAttributes(Wire, frozen=True):
    """authorization/v1 ResourceAttributes; an empty group is that of core/v1, an empty namespace means all."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""


class SelfSubjectAccessReviewSpec(Wire, frozen=True):
    """authorization/v1 SelfSubjectAccessReviewSpec."""

    resource_attributes: ResourceAttributes


class SubjectAccessReviewStatus(Wire, frozen=True):
    """authorization/v1 SubjectAccessReviewStatus."""

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
