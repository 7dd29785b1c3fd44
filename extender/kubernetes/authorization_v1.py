"""The fields of authorization.k8s.io/v1 by which a client learns its own rights, and those of another account.

Source: k8s.io/api/authorization/v1/types.go.
"""

import msgspec

from extender.kubernetes.meta_v1 import Wire


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


class SubjectAccessReviewSpec(Wire, frozen=True):
    """authorization/v1 SubjectAccessReviewSpec."""

    resource_attributes: ResourceAttributes
    user: str
    groups: tuple[str, ...]


class SubjectAccessReview(Wire, frozen=True):
    """authorization/v1 SubjectAccessReview; the API server adds the status."""

    spec: SubjectAccessReviewSpec
    status: SubjectAccessReviewStatus | None = None
    api_version: str = "authorization.k8s.io/v1"
    kind: str = "SubjectAccessReview"


_ENCODER = msgspec.json.Encoder()


def encode_access_review(attributes: ResourceAttributes) -> bytes:
    """The request whether the client that sends it may do this."""
    return _ENCODER.encode(SelfSubjectAccessReview(SelfSubjectAccessReviewSpec(attributes)))


def encode_subject_access_review(user: str, groups: tuple[str, ...], attributes: ResourceAttributes) -> bytes:
    """The request whether a user of these groups may do this."""
    return _ENCODER.encode(SubjectAccessReview(SubjectAccessReviewSpec(attributes, user, groups)))
