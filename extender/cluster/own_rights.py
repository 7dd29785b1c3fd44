"""Whether this process may do what it has to, as the API server itself says.

Specification: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from extender.cluster.client import ClusterClient, decode_answer
from extender.errors import ClusterError
from extender.kubernetes.api_groups import ResourceAttributes, SelfSubjectAccessReview, encode_access_review

log = structlog.get_logger()

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CHECK_SECONDS = 60.0  # between two checks; a few requests each
RETRY_SECONDS = 2.0  # while the API server cannot be asked, or says no; doubles up to `CHECK_SECONDS` where it says no
PROVEN_SECONDS = 90.0  # for how long a check counts
_REQUEST_SECONDS = 5.0

_REVIEW = msgspec.json.Decoder(SelfSubjectAccessReview)


async def is_allowed(client: ClusterClient, right: ResourceAttributes) -> bool:
    """Whether the API server lets this process do that. Raises ClusterError."""
    body = await client.send("POST", REVIEWS, encode_access_review(right), timeout_seconds=_REQUEST_SECONDS)
    status = decode_answer(_REVIEW, body, "SelfSubjectAccessReview").status
    return status is not None and status.allowed


class OwnRights:
    """Whether all of `wanted` was allowed when the API server was asked last, while `run` runs.

    `needed`: what is missing is a fault, which is logged as such.
    """

    def __init__(
        self,
        client: ClusterClient,
        wanted: Sequence[ResourceAttributes],
        *,
        needed: bool = True,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._needed = needed
        self._clock = clock
        self._sleep = sleep
        self._proven_until = 0.0
        self._retry_seconds = RETRY_SECONDS
        self._problem = ""
        self.were_proven = asyncio.Event()
        """Whether everything was allowed once."""

    def are_proven(self) -> bool:
        """Whether everything was allowed within `PROVEN_SECONDS`, and nothing has been refused since."""
        return self._clock() < self._proven_until

    async def run(self) -> None:
        """Asks the API server again and again until cancelled, also after ClusterErrors."""
        while True:
            await self._sleep(await self._check())

    async def _check(self) -> float:
        """Asks once; returns after how many seconds to ask again."""
        started_at = self._clock()
        try:
            refused = [right for right in self._wanted if not await is_allowed(self._client, right)]
        except ClusterError as exc:  # says nothing about rights: what was proven lasts
            self._report(str(exc))
            return RETRY_SECONDS
        if refused:
            self._proven_until = 0.0
            self._report(f"may not {', '.join(map(str, refused))}")
            seconds, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, CHECK_SECONDS)
            return seconds
        self._proven_until = started_at + PROVEN_SECONDS
        self._retry_seconds = RETRY_SECONDS
        self.were_proven.set()
        self._problem = ""
        return CHECK_SECONDS

    def _report(self, problem: str) -> None:
        """Logs what is missing once, and again when that changes."""
        if problem != self._problem:
            if self._needed:
                log.warning("rights.unproven", why=problem)
            else:
                log.info("rights.unproven", why=problem)
        self._problem = problem
