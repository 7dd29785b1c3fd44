"""Has images that pods use looked into in the background: one at a time; namespaces take turns, their oldest first.

An image is noted whenever a registry confirms it for a pod. Registries are spared: one host is asked for one image in
so many seconds, and what could not be found out is not tried again by this process.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from extender.credentials.keyring import Credential
from extender.errors import InvalidManifest, RegistryError, RegistryThrottled, UnsupportedManifest
from extender.images.content import Content
from extender.images.platform import Compatibility, Platform, satisfies
from extender.images.platform_states import PlatformState, claim_text
from extender.images.reference import ImageReference
from extender.metrics import counter
from extender.resolver.image_cache import ImageCache
from extender.resolver.platform_verifier import PlatformSource, PlatformVerifier
from extender.tables import LruTable, declare_cache
from extender.verifier.verification import Verification

log = structlog.get_logger()

LOOKS = counter(
    "multiarch_verifications_total",
    "Platforms of images that were looked into in the background, by what is known of them now; failed: the registry "
    "did not let us; dropped: too many images waited.",
    "outcome",
    (PlatformState.VERIFIED, PlatformState.REFUTED, PlatformState.CONTRADICTORY, PlatformState.MISSING,
     PlatformState.CLAIMED, "failed", "dropped"),
)  # fmt: skip
BYTES = counter(
    "multiarch_verification_bytes_total",
    "Bytes of layers of images that were verified: those that were read, and those that did not have to be.",
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


class _WaitingImage(NamedTuple):
    """An image and the credential that a registry has shown it to."""

    reference: ImageReference
    credential: Credential
    tenant: str


class VerifyQueue:
    """The images that wait to be looked into. `run` works them off."""

    def __init__(
        self,
        source: PlatformSource,
        cache: ImageCache,
        cluster_platforms: Callable[[], frozenset[Platform]],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        host_seconds: float = HOST_SECONDS,
    ) -> None:
        """`cluster_platforms` gives the platforms of the cluster's nodes: others are not looked at."""
        self._source = source
        self._verifier = PlatformVerifier(source, cache)
        self._cache = cache
        self._cluster_platforms = cluster_platforms
        self._clock = clock
        self._sleep = sleep
        self._host_seconds = host_seconds
        self._waiting: dict[_Key, _WaitingImage] = {}
        self._tenants = Counter[str]()  # how many images of each wait
        self._turns: dict[str, int] = {}  # the number of the last turn of each tenant that waits
        self._turn = 0
        self._tried: LruTable[_Key, bool] = LruTable(_TRIED.bound())
        self._peace_until: dict[str, float] = {}
        self._wanted = asyncio.Event()

    def __len__(self) -> int:
        """How many images wait."""
        return len(self._waiting)

    def note(
        self, reference: ImageReference, digest: str, content: Content, credential: Credential, tenant: str
    ) -> None:
        """Has an image looked into that a registry has confirmed, unless all is known or it was tried. Microseconds."""
        key = (reference.repository, digest)
        if key in self._waiting or self._tried.get(key) or not self._unverified(content):
            return
        if len(self._waiting) >= _MOST_WAITING or self._tenants[tenant] >= _MOST_WAITING_EACH:
            LOOKS["dropped"].inc()
            return
        self._waiting[key] = _WaitingImage(reference.with_digest(digest), credential, tenant)
        self._tenants[tenant] += 1
        self._turns.setdefault(tenant, self._turn)  # behind those that wait already
        self._wanted.set()

    async def run(self) -> None:
        """Looks into what waits, until cancelled."""
        while True:
            await self._wanted.wait()
            key = self._next()
            if key is None:
                await self._sleep(self._peace_seconds())
                continue
            image = self._take(key)
            await self._look(key, image)
            self._peace_until[image.reference.domain] = self._clock() + self._host_seconds

    def _unverified(self, content: Content) -> list[Platform]:
        """The platforms of the cluster that the image claims and of which nothing more is known."""
        nodes = self._cluster_platforms()
        return [
            platform
            for platform in sorted(content.platforms - content.verified)
            if any(satisfies(node, platform, _EXACTLY) for node in nodes)
        ]

    def _take(self, key: _Key) -> _WaitingImage:
        image = self._waiting.pop(key)
        self._tenants[image.tenant] -= 1
        self._turn += 1
        self._turns[image.tenant] = self._turn
        if not self._tenants[image.tenant]:
            del self._tenants[image.tenant], self._turns[image.tenant]
        if not self._waiting:
            self._wanted.clear()
        return image

    def _next(self) -> _Key | None:
        """The image that waits longest of the tenant whose turn is longest ago, at a host that may be asked now."""
        now = self._clock()
        self._peace_until = {host: until for host, until in self._peace_until.items() if until > now}
        ready = [key for key, image in self._waiting.items() if image.reference.domain not in self._peace_until]
        return min(ready, key=lambda key: self._turns[self._waiting[key].tenant], default=None)

    def _peace_seconds(self) -> float:
        return max(0.0, min(self._peace_until.values(), default=0.0) - self._clock())

    async def _look(self, key: _Key, image: _WaitingImage) -> None:
        repository, digest = key
        content = self._cache.shown(repository, digest)
        if content is None:
            return
        found: list[Verification] = []
        for platform in self._unverified(content):
            try:
                each = await self._source.verify(
                    image.reference, platform, image.credential, tenant=image.tenant, seconds=_LOOK_SECONDS
                )
            except RegistryThrottled:
                LOOKS["failed"].inc()
                break  # to be noted again
            except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
                LOOKS["failed"].inc()
                log.info("image.unverifiable", image=str(image.reference), platform=str(platform), why=str(exc))
                self._tried.put(key, True)
                break
            found.append(each)
            LOOKS[each.state].inc()
            BYTES["read"].inc(each.read_bytes)
            BYTES["unread"].inc(max(0, each.layer_bytes - each.read_bytes))
            self._tell(image.reference, each)
        else:
            self._tried.put(key, True)
        await self._verifier.record(repository, digest, found)

    @staticmethod
    def _tell(reference: ImageReference, found: Verification) -> None:
        if found.denied:
            log.warning("image.lies", image=str(reference), said=claim_text(found.denied))
        elif found.state is PlatformState.CLAIMED:
            log.info("image.unverifiable", image=str(reference), platform=str(found.platform), why=found.detail)
