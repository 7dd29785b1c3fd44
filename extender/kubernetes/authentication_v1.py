"""The fields of authentication.k8s.io/v1 by which the API server tells whose a token is.

Source: k8s.io/api/authentication/v1/types.go.
"""

import msgspec

from extender.kubernetes.wire import Wire


class UserInfo(Wire, frozen=True):
    """authentication/v1 UserInfo: who a request is from, as the API server's authorizers see it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


class TokenReviewSpec(Wire, frozen=True):
    """authentication/v1 TokenReviewSpec; without audiences the token must be meant for the API server."""

    token: str = ""


class TokenReviewStatus(Wire, frozen=True):
    """authentication/v1 TokenReviewStatus."""

    authenticated: bool = False
    user: UserInfo = UserInfo()


class TokenReview(Wire, frozen=True):
    """authentication/v1 TokenReview; the API server adds the status."""

    spec: TokenReviewSpec
    status: TokenReviewStatus | None = None
    api_version: str = "authentication.k8s.io/v1"
    kind: str = "TokenReview"


_ENCODER = msgspec.json.Encoder()


def encode_token_review(token: str) -> bytes:
    """The request whose token this is."""
    return _ENCODER.encode(TokenReview(TokenReviewSpec(token)))
