"""One lookup: in the cache and the store for the credentials of a keyring, then at the registry with one after another.

This file has the order of credentials and requests, and what each of them proves. A source of credentials may take a
minute, or hang. It must not hold up images that the sources before it open, so a source's are loaded when those before
them have not worked.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import structlog
from async_lru import alru_cache
from prometheus_client import Gauge

from extender.credentials.keyring import (
    ANONYMOUS,
    Credential,
    CredentialId,
    Keyring,
    is_operators,
    load_source,
    sources_of,
)
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryRefusedImage,
    UnsupportedManifest,
)
from extender.images.content import Cause, Content, Failure, content_of
from extender.images.manifest import Image
from extender.images.reference import ImageReference
from extender.metrics import REGISTRY
from extender.resolver.child_checks import ChildChecks
from extender.resolver.failures import DENIED, Failures, depends_on_credential, judged, summary
from extender.resolver.host_breakers import BreakerOpen, HostBreakers
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery, Target
from extender.resolver.image_source import ImageSource
from extender.resolver.persistence import Persistence
from extender.turns import Turns

T = TypeVar("T", CachedImage, Image)
OnConfirmed = Callable[[ImageReference, str, Content, Credential, str], None]
"""Is called with an image's reference, digest and content, and the credential and tenant that were shown it."""
Ask = Callable[[Target, Credential, str], Awaitable[T]]

log = structlog.get_logger()

THROTTLED = Gauge(
    "multiarch_registry_throttled_seconds",
    "Seconds until requests with the operator's login, or to Docker Hub without one, are made again after a 429, the "
    "last of them; 0 when none wait. Other registries and logins, which pods may name, do not count.",
    registry=REGISTRY,
)


# Lookups that ask registries at a time, those of one tenant, and those at one host: so that a host that hangs, or a
# tenant that names many of them, holds up only so many. Sixteen at a registry that answers in 50 ms are 320 lookups a
# second, and open as many connections to it as the pulls of a few nodes.
_AT_ONCE, _EACH, _AT_HOST = 256, 64, 16
# How much longer than its source a lookup waits, so that the source says what it was that took so long.
_GRACE_SECONDS = 1.0


class CredentialOrder:
    """The credentials of one lookup.

    Those that are known to work come first. The others come source by source, `ANONYMOUS` after all others.
    """

    def __init__(self, keyring: Keyring, reference: ImageReference, is_known: Callable[[CredentialId], bool]) -> None:
        """`is_known` says whether a credential most likely works: whether the cache has the image for it."""
        self._keyring = keyring
        self._reference = reference
        self._is_known = is_known
        self._sources = sources_of(keyring)
        self._loaded: dict[int, tuple[Credential, ...]] = {}

    async def credentials(self) -> AsyncGenerator[Credential]:
        """Yields each credential once. Loads a source only when its credentials are wanted.

        Raises:
            NoTurn: as `Keyring.load`.
        """
        positions = range(len(self._sources))
        steps: list[Callable[[], Awaitable[tuple[Credential, ...]]]] = [
            *(partial(self._known_of, position) for position in positions),
            self._anonymous_if_known,
            *(partial(self._logins_of, position) for position in positions),
            self._anonymous,
        ]
        yielded: set[Credential] = set()
        for step in steps:
            for credential in await step():
                if credential not in yielded:
                    yielded.add(credential)
                    yield credential

    async def _known_of(self, position: int) -> tuple[Credential, ...]:
        credential_ids = self._sources[position].credential_ids_for(self._reference)
        if not any(each != ANONYMOUS.id and self._is_known(each) for each in credential_ids):
            return ()
        return tuple(login for login in await self._logins_of(position) if self._is_known(login.id))

    async def _logins_of(self, position: int) -> tuple[Credential, ...]:
        if position not in self._loaded:
            found = await load_source(self._sources[position], self._reference, tenant=self._keyring.tenant)
            self._loaded[position] = tuple(credential for credential in found if credential != ANONYMOUS)
        return self._loaded[position]

    async def _anonymous_if_known(self) -> tuple[Credential, ...]:
        return await self._anonymous() if self._is_known(ANONYMOUS.id) else ()

    async def _anonymous(self) -> tuple[Credential, ...]:
        is_allowed = ANONYMOUS.id in self._keyring.credential_ids_for(self._reference)
        return (ANONYMOUS,) if is_allowed else ()


class KeyringLookup:
    """Looks images up with keyrings; writes what it learns into the cache, and errors into the failures.

    A request waits for a turn of its tenant. Whoever has a turn and wants the same as another request shares it, so
    there are no more of them than turns. Every method raises NoTurn if no turn has come in time, at a registry or a
    source of credentials; all else becomes a `Failure`.
    """

    def __init__(  # noqa: PLR0913 - settings and parts, each by its name
        self,
        source: ImageSource,
        cache: ImageCache,
        persistence: Persistence,
        failures: Failures,
        child_checks: ChildChecks,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        head_first: bool,
        lookup_seconds: float,
    ) -> None:
        """`lookup_seconds` is how long the requests for one credential may take together."""
        self._source = source
        self._head_first = head_first
        self._cache = cache
        self._persistence = persistence
        self._failures = failures
        self._child_checks = child_checks
        self._clock = clock
        self._random = random
        self._lookup_seconds = lookup_seconds
        self._breakers = HostBreakers(clock, random)
        self._turns = Turns(total=_AT_ONCE, each=_EACH, at_host=_AT_HOST)
        self.on_confirmed: OnConfirmed | None = None
        self._try = alru_cache(maxsize=None, ttl=0, key=_key_of_try)(self._try_once)
        self._describe = alru_cache(maxsize=None, ttl=0, key=_key_of_description)(self._describe_once)

    def expected_failure(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """The failure that a lookup with this credential would end in now without a request; None if it would ask."""
        return self._failures.current(target, credential_id) or self._breakers.failure(target, credential_id)

    async def find(self, query: ImageQuery, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the cache or the store has as fresh for the keyring's credentials; else what the registry gives.

        Loads no credentials if the ids known so far suffice.
        """
        recalled: set[CredentialId] = set()

        async def recall(credential_ids: Sequence[CredentialId]) -> CachedImage | None:
            unread = [credential_id for credential_id in credential_ids if credential_id not in recalled]
            recalled.update(unread)
            return await self._recall(query, target, credential_ids, unread)

        async def ask(credential: Credential) -> CachedImage | Failure:
            known = await recall([credential.id])
            return known or await self._take_turn(target, credential, keyring.tenant, self._ask)

        known = await recall(keyring.credential_ids_for(target.reference))
        return known or await self._try_credentials(ask, target, keyring)

    async def confirm(self, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the registry gives, whatever the cache and the store have."""

        async def ask(credential: Credential) -> CachedImage | Failure:
            return await self._take_turn(target, credential, keyring.tenant, self._ask)

        return await self._try_credentials(ask, target, keyring)

    async def describe(self, target: Target, keyring: Keyring) -> Image | Failure:
        """As `confirm`, with all details of the image, which are asked for each time."""

        async def ask(credential: Credential) -> Image | Failure:
            return await self._take_turn(target, credential, keyring.tenant, self._ask_details)

        return await self._try_credentials(ask, target, keyring)

    async def _recall(
        self, query: ImageQuery, target: Target, credential_ids: Sequence[CredentialId], unread: Sequence[CredentialId]
    ) -> CachedImage | None:
        """What the cache has as fresh for these credentials, after reading the store's rows for those `unread`."""
        for key, known in await self._persistence.find(target, unread):
            self._cache.load(key, known)
        for credential_id in credential_ids:
            found = self._cache.find(target, credential_id)
            if found and self._cache.is_fresh(found, query, target, credential_id, self._clock()):
                return found
        return None

    async def _try_credentials(
        self, ask: Callable[[Credential], Awaitable[T | Failure]], target: Target, keyring: Keyring
    ) -> T | Failure:
        """The outcome of `ask` for the first credential that works; when all are denied, for those that have changed.

        That all at hand are denied tells nothing if others could not be read.
        """
        failures: dict[Credential, Failure] = {}

        async def works(credential: Credential) -> T | Failure | None:
            outcome = await ask(credential)
            if isinstance(outcome, Failure) and outcome.cause is Cause.THROTTLED:
                self._note_throttled(target.reference, keyring, credential.id)
            if isinstance(outcome, Failure) and depends_on_credential(outcome):
                failures[credential] = outcome
                return None
            return outcome

        order = CredentialOrder(keyring, target.reference, lambda each: self._cache.find(target, each) is not None)
        async with contextlib.aclosing(order.credentials()) as credentials:
            async for credential in credentials:
                if outcome := await works(credential):
                    return outcome
        tried = list(failures)
        renewed = await keyring.load(target.reference, refresh=True, tenant=keyring.tenant)
        if set(renewed) != set(tried):
            self._forget_failures(target, tried, renewed)
            failures.clear()
            for credential in renewed:
                if outcome := await works(credential):
                    return outcome
        return judged(summary(failures.values()) or DENIED, is_unread=keyring.is_unread(target.reference))

    def _note_throttled(self, reference: ImageReference, keyring: Keyring, credential_id: CredentialId) -> None:
        """Shows the wait in the metric if it is the operator's: pods may name registries that throttle everybody."""
        is_shared = credential_id == ANONYMOUS.id and reference.domain == "docker.io"  # by the nodes' address
        if is_shared or is_operators(keyring, reference, credential_id):
            wait = partial(self._breakers.throttled_seconds, reference.domain, credential_id)
            THROTTLED.set_function(wait)

    def _forget_failures(self, target: Target, before: Sequence[Credential], after: Sequence[Credential]) -> None:
        """Removes failures of credentials whose password has changed under the same id."""
        credential_ids = {credential.id for credential in before}
        for credential in after:
            if credential.id in credential_ids and credential not in before:
                self._failures.forget(target, credential.id)

    async def _take_turn(self, target: Target, credential: Credential, tenant: str, ask: Ask[T]) -> T | Failure:
        """Waits for a turn, and asks unless another lookup has answered meanwhile."""
        started = self._clock()
        expected = self.expected_failure(target, credential.id)
        if expected:
            return expected
        async with self._turns.turn(tenant, target.reference.domain):
            known = self._cache.find(target, credential.id)
            if known and known.confirmed_at >= started and ask == self._ask:
                return known
            outcome: T | Failure = await self._try(target, credential, tenant, ask)
            return outcome

    async def _try_once(self, target: Target, credential: Credential, tenant: str, ask: Ask[T]) -> T | Failure:
        """The outcome of one try, which all share that have a turn for it: `alru_cache` wraps this method.

        Several keyrings may hold the same credential: every keyring holds `ANONYMOUS`. The failure is recorded here,
        and so counts once.
        """
        current = self._failures.current(target, credential.id)
        if current:
            return current
        try:
            with self._breakers.visit(target, credential.id):
                async with asyncio.timeout(self._lookup_seconds + _GRACE_SECONDS):
                    outcome = await ask(target, credential, tenant)
        except BreakerOpen as exc:
            return exc.failure
        except (RegistryError, InvalidManifest, UnsupportedManifest, TimeoutError) as exc:
            return self._fail(target, credential, exc, tenant)
        except Exception as exc:  # noqa: BLE001 - an unexpected error must become a Failure too
            return self._crash(target, credential, exc, tenant)
        self._failures.forget(target, credential.id)
        return outcome

    def _fail(self, target: Target, credential: Credential, error: Exception, tenant: str) -> Failure:
        if isinstance(error, RegistryDenied):
            self._cache.revoke(target, credential.id, self._clock())
        failure = self._failures.remember(target, credential.id, error, tenant)
        log.info("lookup.failed", image=str(target.reference), cause=failure.cause.value, credential_id=credential.id)
        return failure

    def _crash(self, target: Target, credential: Credential, error: Exception, tenant: str) -> Failure:
        """Logs a defect of ours with an id; the pod's author is shown that the registry is unavailable."""
        crash = f"{int(self._random() * 2**32):08x}"
        log.error("lookup.crashed", id=crash, image=str(target.reference), exc_info=error)
        return self._failures.remember(target, credential.id, error, tenant)

    async def _ask(self, target: Target, credential: Credential, tenant: str) -> CachedImage:
        """The target's digest and content as this credential sees them, by a HEAD, a GET, or both.

        A digest whose content is not known is fetched without a HEAD. Otherwise the HEAD comes first: it is free where
        GETs are counted (Docker Hub), and it proves this credential's access to content that another one fetched.
        Unless `head_first`, a name that was never known takes one GET, in half the time.
        """
        reference, ends = target.asked, asyncio.get_running_loop().time() + self._lookup_seconds
        if not self._takes_head(target, credential):
            return await self._learn(target, reference, credential, tenant, ends)
        try:
            stated = await self._source.state_digest(reference, credential, tenant=tenant, seconds=_left(ends))
        except (ManifestNotFound, RegistryDenied, RegistryRefusedImage, RegistryFailed):
            stated = None  # some registries answer so to a HEAD, and have it
        if stated is None:
            return await self._learn(target, reference, credential, tenant, ends)
        at = self._clock()
        known = self._cache.confirm(target, credential.id, stated, at, tenant)
        if known:
            if known.content.denied:
                self._child_checks.note_confirmed(reference, stated, known.content, credential, tenant)
            self._tell_of(reference, known, credential, tenant)
            return known
        try:
            return await self._learn(target, reference.pinned_to(stated), credential, tenant, ends)
        except (ManifestNotFound, InvalidManifest):
            # The tag has just moved, or the header is wrong (some registries do that): the bytes behind the tag decide.
            if reference.digest:
                raise
            return await self._learn(target, reference, credential, tenant, ends)

    async def _ask_details(self, target: Target, credential: Credential, tenant: str) -> Image:
        ends = asyncio.get_running_loop().time() + self._lookup_seconds
        at = self._clock()
        image = await self._describe(target.asked, credential, tenant, ends)
        self._cache.learn(target, credential.id, image.digest, content_of(image), at, tenant)
        return image

    def _takes_head(self, target: Target, credential: Credential) -> bool:
        if target.reference.digest and self._cache.shown(target.repository, target.reference.digest) is None:
            return False
        return self._head_first or self._cache.find(target, credential.id) is not None

    async def _learn(
        self, target: Target, reference: ImageReference, credential: Credential, tenant: str, ends: float
    ) -> CachedImage:
        """Has the reference described, and records that the target is this image for this credential.

        The row is as old as the question, however long the answer takes.
        """
        at = self._clock()
        image = await self._describe(reference, credential, tenant, ends)
        is_new = self._cache.shown(target.repository, image.digest) is None
        known = self._cache.learn(target, credential.id, image.digest, content_of(image), at, tenant)
        if is_new:
            self._child_checks.note_image(reference, image, credential, tenant)
        self._tell_of(reference, known, credential, tenant)
        return known

    def _tell_of(self, reference: ImageReference, known: CachedImage, credential: Credential, tenant: str) -> None:
        if self.on_confirmed:
            self.on_confirmed(reference, known.digest, known.content, credential, tenant)

    async def _describe_once(
        self, reference: ImageReference, credential: Credential, tenant: str, ends: float
    ) -> Image:
        """The image's description, which all names share that mean the same digest: `alru_cache` wraps this method.

        The key is (repository, digest or tag, whether a tag leads to it, credential id), since nodes may ask others for
        a digest than for a tag. Bytes from one repository prove nothing about another,
        and one credential must not get what another was given.
        """
        return await self._source.describe(reference, credential, tenant=tenant, seconds=_left(ends))


def _left(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())


def _key_of_try(target: Target, credential: Credential, tenant: str, ask: Hashable) -> Hashable:  # noqa: ARG001
    return target.repository, target.name, credential.id, ask


def _key_of_description(
    reference: ImageReference,
    credential: Credential,
    tenant: str,  # noqa: ARG001 - the key is the same for all
    ends: float,  # noqa: ARG001
) -> Hashable:
    return reference.repository, reference.digest or reference.tag, bool(reference.tag), credential.id
