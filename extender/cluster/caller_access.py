"""Who a caller is and what they may read, as the API server says: TokenReview and SubjectAccessReview.

Anyone who reaches the listener can have reviews made, so reviews under way are a budget with a share for each address
or user, and each takes its part for a while. What the API server said is kept for seconds. Refused tokens are kept
apart, so that invented ones evict nobody's.
Specification: https://kubernetes.io/docs/reference/access-authn-authz/webhook/
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from extender.budgets import Budget, declare_budget
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.errors import ClusterError
from extender.kubernetes.authentication_v1 import TokenReview, UserInfo, encode_token_review
from extender.kubernetes.authorization_v1 import (
    ObjectAttributes,
    SubjectAccessReview,
    encode_subject_access_review,
)
from extender.metrics import counter
from extender.tables import Table, declare_cache

T = TypeVar("T")

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105  # a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEEP_SECONDS = 10.0  # as the API server's own components keep such answers
_REQUEST_SECONDS = 5.0
_POD_BYTES = 2 << 20  # etcd holds 1.5 MiB
_MOST_TOKEN = 8192
_MOST_USER_BYTES = 16 << 10  # a user with more groups is asked about each time
# A turn lasts at least so long. So an address begins 16 reviews of tokens a second at most, and all together 64.
_TURN_SECONDS = 0.25
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)  # RFC 1123 subdomain: safe in a path

REVIEWS = counter(
    "multiarch_access_reviews_total",
    "Questions to the API server about callers, by its answer; busy: not asked, as no turn was free.",
    "outcome",
    ("allowed", "refused", "error", "busy"),
)
_IDENTIFYING = declare_budget(
    "cluster.caller_access.identifying",
    unit="tokens under review, by the caller's address, each for a quarter of a second at least",
    total=16,
    most_each=4,
    why="anyone can send tokens; an API server answers in milliseconds, and 64 a second are no burden to it",
)
_CHECKING = declare_budget(
    "cluster.caller_access.checking",
    unit="rights under review, pods read and images looked up, by user, each for a quarter of a second at least",
    total=64,
    most_each=16,
    why="an explanation takes two; 256 a second together are little to an API server, and users are known to it",
)
_USERS = declare_cache(
    "cluster.caller_access.users",
    key="hash of a token",
    lifetime=f"{KEEP_SECONDS:g} s",
    bound=256,
    at_most="8 MB",
)
_STRANGERS = declare_cache(
    "cluster.caller_access.strangers",
    key="hash of a refused token",
    lifetime=f"{KEEP_SECONDS:g} s",
    bound=1024,
    at_most="0.3 MB",
)
_RIGHTS = declare_cache(
    "cluster.caller_access.rights",
    key="hash of user and object",
    lifetime=f"{KEEP_SECONDS:g} s",
    bound=4096,
    at_most="1 MB",
)

_TOKEN_REVIEW = msgspec.json.Decoder(TokenReview)
_ACCESS_REVIEW = msgspec.json.Decoder(SubjectAccessReview)


class AccessBusy(ClusterError):
    """Too many reviews are under way, for this caller or together; to be tried again in a second."""


class CallerAccess:
    """Asks the API server about callers. Needs the right to create TokenReviews and SubjectAccessReviews, and get pods.

    Keeps hashes of tokens, and no token.
    """

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._identifying = Budget(_IDENTIFYING)
        self._checking = Budget(_CHECKING)
        self._users: Table[bytes, tuple[float, UserInfo]] = _USERS.table()
        self._strangers: Table[bytes, float] = _STRANGERS.table()
        self._rights: Table[bytes, tuple[float, bool]] = _RIGHTS.table()

    async def identify(self, token: str, address: str) -> UserInfo | None:
        """Whose the token is; None if the API server does not know it. `address` is that of the caller.

        Raises:
            AccessBusy: too many tokens of this address are being reviewed, or of all.
            ClusterError: the API server could not be asked.
        """
        if not token or len(token) > _MOST_TOKEN:
            return None
        key = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        kept = self._users.peek(key)
        if kept and now < kept[0]:
            return kept[1]
        if now < (self._strangers.peek(key) or 0.0):
            return None
        body = await self._post(TOKEN_REVIEWS, encode_token_review(token), self._identifying, address)
        status = _decode(_TOKEN_REVIEW, body).status
        if status is None or not status.authenticated or not status.user.username:
            REVIEWS["refused"].inc()
            self._strangers.put(key, now + KEEP_SECONDS)
            return None
        REVIEWS["allowed"].inc()
        if len(msgspec.json.encode(status.user)) <= _MOST_USER_BYTES:
            self._users.put(key, (now + KEEP_SECONDS, status.user))
        return status.user

    async def may_get_pod(self, user: UserInfo, namespace: str, name: str) -> bool:
        """Whether the user may get this pod; an empty namespace means all namespaces, an empty name all pods of one.

        Raises:
            AccessBusy: as `identify`, counted for the user.
            ClusterError: the API server could not be asked.
        """
        attributes = ObjectAttributes(verb="get", resource="pods", namespace=namespace, name=name)
        request = encode_subject_access_review(user, attributes)
        key = hashlib.sha256(request).digest()
        now = self._clock()
        kept = self._rights.peek(key)
        if kept and now < kept[0]:
            return kept[1]
        body = await self._post(ACCESS_REVIEWS, request, self._checking, user.username)
        status = _decode(_ACCESS_REVIEW, body).status
        is_allowed = status is not None and status.allowed
        REVIEWS["allowed" if is_allowed else "refused"].inc()
        self._rights.put(key, (now + KEEP_SECONDS, is_allowed))
        return is_allowed

    async def fetch_pod(self, user: UserInfo, namespace: str, name: str) -> bytes | None:
        """The pod as JSON, undecoded; None if there is none. It is read with our rights, so ask `may_get_pod` first.

        Raises:
            AccessBusy: as `may_get_pod`.
            ClusterError: the pod could not be read.
        """
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            return None
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        async with self.turn(user):
            try:
                return await self._client.get(path, timeout_seconds=_REQUEST_SECONDS, body_bytes=_POD_BYTES)
            except ClusterRefused as exc:
                if exc.status == 404:
                    return None
                raise

    def turn(self, user: UserInfo) -> contextlib.AbstractAsyncContextManager[None]:
        """A turn of the user for something that costs us work. Entering it raises AccessBusy as `may_get_pod` does."""
        return self._turn(self._checking, user.username)

    async def _post(self, path: str, body: bytes, budget: Budget, tenant: str) -> bytes:
        async with self._turn(budget, tenant):
            return await self._client.send("POST", path, body, timeout_seconds=_REQUEST_SECONDS)

    @contextlib.asynccontextmanager
    async def _turn(self, budget: Budget, tenant: str) -> AsyncIterator[None]:
        """Holds a part of the budget for the tenant, at least for `_TURN_SECONDS`. Raises AccessBusy."""
        if not budget.take(tenant):
            REVIEWS["busy"].inc()
            raise AccessBusy("too many callers are being checked now; try again in a second")
        started = self._clock()
        try:
            yield
        except ClusterError:
            REVIEWS["error"].inc()
            raise
        finally:
            remaining = _TURN_SECONDS - (self._clock() - started)
            asyncio.get_running_loop().call_later(max(remaining, 0.0), budget.give_back, tenant)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ClusterError(f"the API server's answer is no review: {exc}") from exc
