"""Has images that pods use looked into in the background: one at a time; namespaces take turns, their oldest first.

An image is noted whenever a registry confirms it for a pod. Registries are asked little: one host is asked for one
image in so many seconds, and what could not be found out is not tried again by this process.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from extender.fetcher.messages import Failed, PullAccess, Verify
from extender.images.content import Cause, Content
from extender.images.platform import Compatibility, Platform, satisfies
from extender.images.platform_states import PlatformState, claim_text
from extender.metrics import counter
from extender.resolver.image_cache import ImageCache, Target
from extender.resolver.lookups import Confirmed, Sources
from extender.tables import LruTable, declare_cache
from extender.verifier.verification import Verification

log = structlog.get_logger()

LOOKS = counter(
    "multiarch_verifications_total",
    "Platforms that were verified, by the result; failed: the registry did not answer; dropped: too many waited.",
    "outcome",
    (PlatformState.VERIFIED, PlatformState.REFUTED, PlatformState.CONTRADICTORY, PlatformState.MISSING,
     PlatformState.CLAIMED, "failed", "dropped"),
)  # fmt: skip
BYTES = counter(
    "multiarch_verification_bytes_total",
    "Bytes of layers of images that were verified.",
    "part",
    ("read", "unread"),
)
_TRIED = declare_cache("resolver.verify_queue.tried", key="repository, digest", rows=4096, most_mb=3)

HOST_SECONDS = 10.0
"""How long a host has peace between two images."""
_LOOK_SECONDS = 120.0
_MOST_WAITING, _MOST_WAITING_EACH = 2_000, 300  # images of all tenants and of one, of 1 KB each
_EXACTLY = Compatibility()
_Key = tuple[str, str]  # repository, digest


class VerifyQueue:
    """The images that wait to be looked into. `run` works them off."""

    def __init__(
        self,
        sources: Sources,
        cache: ImageCache,
        cluster_platforms: Callable[[], frozenset[Platform]],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        host_seconds: float = HOST_SECONDS,
    ) -> None:
        """`cluster_platforms` gives the platforms of the cluster's nodes: others are not looked at."""
        self._sources = sources
        self._cache = cache
        self._cluster_platforms = cluster_platforms
        self._clock = clock
        self._sleep = sleep
        self._host_seconds = host_seconds
        self._waiting: dict[str, dict[_Key, Confirmed]] = {}  # by tenant, the next one first
        self._tried: LruTable[_Key, bool] = LruTable(_TRIED.bound())
        self._peace_until: dict[str, float] = {}
        self._wanted = asyncio.Event()

    def __len__(self) -> int:
        """How many images wait."""
        return sum(map(len, self._waiting.values()))

    def note(self, image: Confirmed) -> None:
        """Has an image looked into that a registry has confirmed, unless all is known or it was tried. Microseconds."""
        key = (image.target.repository, image.digest)
        if self._tried.get(key) or not self._unverified(image.content):
            return
        if any(key in images for images in self._waiting.values()):
            return
        if len(self) >= _MOST_WAITING or len(self._waiting.get(image.tenant, ())) >= _MOST_WAITING_EACH:
            LOOKS["dropped"].inc()
            return
        self._waiting.setdefault(image.tenant, {})[key] = image
        self._wanted.set()

    async def run(self) -> None:
        """Looks into what waits, until cancelled."""
        while True:
            await self._wanted.wait()
            now = self._clock()
            self._peace_until = {host: until for host, until in self._peace_until.items() if until > now}
            image = self._take_next()
            if image:
                await self._look(image)
                self._peace_until[image.target.asked.domain] = self._clock() + self._host_seconds
            else:
                await self._sleep(min(self._peace_until.values(), default=now) - now)

    def _unverified(self, content: Content) -> list[Platform]:
        """The platforms of the cluster that the image claims and of which nothing more is known."""
        nodes = self._cluster_platforms()
        return [
            platform
            for platform in sorted(content.platforms - content.verified)
            if any(satisfies(node, platform, _EXACTLY) for node in nodes)
        ]

    def _take_next(self) -> Confirmed | None:
        """Takes the image that waits longest of the tenant whose turn it is, at a host that may be asked now."""
        for tenant, images in self._waiting.items():
            for key, image in images.items():
                if image.target.asked.domain not in self._peace_until:
                    del images[key], self._waiting[tenant]
                    if images:
                        self._waiting[tenant] = images  # behind the others
                    elif not self._waiting:
                        self._wanted.clear()
                    return image
        return None

    async def _look(self, image: Confirmed) -> None:
        key = repository, digest = image.target.repository, image.digest
        content = self._cache.shown(repository, digest)
        if content is None:
            return
        for platform in self._unverified(content):
            found = await verify_platform(
                self._sources, self._cache, image.target, digest, platform, image.access, image.tenant, _LOOK_SECONDS
            )
            if isinstance(found, Failed):
                LOOKS["failed"].inc()
                if found.failure.cause is not Cause.THROTTLED:  # else it is to be noted again
                    log.info("image.unverifiable", image=_name(image), platform=str(platform), why=found.why)
                    self._tried.put(key, True)
                return
            LOOKS[found.state].inc()
            BYTES["read"].inc(found.read_bytes)
            BYTES["unread"].inc(max(0, found.layer_bytes - found.read_bytes))
            if found.falsely_claimed:
                log.warning("image.lies", image=_name(image), said=claim_text(found.falsely_claimed))
            elif found.state is PlatformState.CLAIMED:
                log.info("image.unverifiable", image=_name(image), platform=str(platform), why=found.detail)
        self._tried.put(key, True)


async def verify_platform(
    sources: Sources,
    cache: ImageCache,
    target: Target,
    digest: str,
    platform: Platform,
    access: PullAccess,
    tenant: str,
    seconds: float,
) -> Verification | Failed:
    """Looks inside an image for one platform, and records what is known now in the cache; returns what was found."""
    reference = target.asked.with_digest(digest)
    answer = await sources.verify(
        Verify(
            tenant=tenant,
            reference=reference,
            kubelet_name=target.reference,
            access=access,
            seconds=seconds,
            platform=platform,
        )
    )
    if isinstance(answer, Failed):
        return answer
    found = answer.verification
    false_claims = [found.falsely_claimed] if found.falsely_claimed else []
    verified = [(found.platform, found.state)] if found.state is PlatformState.VERIFIED else []
    if false_claims or verified:
        await cache.judge(target.repository, digest, false_claims, verified)
    return found


def _name(image: Confirmed) -> str:
    return str(image.target.asked.with_digest(image.digest))
