"""One lookup with a keyring: in the cache and the store for its credentials, then at the registry with one after the
other.

A source of credentials may take a minute, or hang. It must not hold up images that the sources before it open, so a
source's are loaded when those before them have not worked. `registry_lookup.py` asks the registry with one of them.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
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
from extender.images.content import Answer, Cause, Failure
from extender.images.manifest import Image
from extender.images.reference import ImageReference
from extender.metrics import REGISTRY
from extender.resolver.failures import DENIED, Failures, depends_on_credential, judged, summary
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery, Target
from extender.resolver.persistence import Persistence
from extender.resolver.registry_lookup import RegistryLookup

THROTTLED = Gauge(
    "multiarch_registry_throttled_seconds",
    "Seconds until requests with the operator's login, or to Docker Hub without one, are made again after a 429, the "
    "last of them; 0 when none wait. Other registries and logins, which pods may name, do not count.",
    registry=REGISTRY,
)


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


T = TypeVar("T", CachedImage, Image)


class KeyringLookup:
    """Looks images up with keyrings. Every method raises NoTurn if no turn has come in time, at a registry or a source
    of credentials; all else becomes a `Failure`.
    """

    def __init__(
        self,
        cache: ImageCache,
        persistence: Persistence,
        registry_lookup: RegistryLookup,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._persistence = persistence
        self._registry_lookup = registry_lookup
        self._clock = clock

    async def find(self, query: ImageQuery, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the cache or the store has as fresh for the keyring's credentials; else what the registry gives.

        Loads no credentials if the ids known so far suffice.
        """
        recalled: set[CredentialId] = set()

        async def recall(credential_ids: Sequence[CredentialId]) -> CachedImage | None:
            unread = [credential_id for credential_id in credential_ids if credential_id not in recalled]
            recalled.update(unread)
            return await self._recall(query, target, credential_ids, unread)

        async def ask(target: Target, credential: Credential, tenant: str) -> CachedImage | Failure:
            return await recall([credential.id]) or await self._registry_lookup.find(target, credential, tenant)

        return await recall(keyring.credential_ids_for(target.reference)) or await self._try(ask, target, keyring)

    async def confirm(self, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the registry gives, whatever the cache and the store have."""
        return await self._try(self._registry_lookup.find, target, keyring)

    async def describe(self, target: Target, keyring: Keyring) -> Image | Failure:
        """As `confirm`, with all details of the image."""
        return await self._try(self._registry_lookup.describe, target, keyring)

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

    async def _try(
        self, ask: Callable[[Target, Credential, str], Awaitable[T | Failure]], target: Target, keyring: Keyring
    ) -> T | Failure:
        """The outcome of `ask` for the first credential that works; when all are denied, for those that have changed.

        That all at hand are denied tells nothing if others could not be read.
        """
        failures: dict[Credential, Failure] = {}

        async def works(credential: Credential) -> T | Failure | None:
            outcome = await ask(target, credential, keyring.tenant)
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
            self._registry_lookup.forget_failure(target, tried, renewed)
            failures.clear()
            for credential in renewed:
                if outcome := await works(credential):
                    return outcome
        return judged(summary(failures.values()) or DENIED, is_unread=keyring.is_unread(target.reference))

    def _note_throttled(self, reference: ImageReference, keyring: Keyring, credential_id: CredentialId) -> None:
        """Shows the wait in the metric if it is the operator's: pods may name registries that throttle everybody."""
        is_shared = credential_id == ANONYMOUS.id and reference.domain == "docker.io"  # by the nodes' address
        if is_shared or is_operators(keyring, reference, credential_id):
            wait = partial(self._registry_lookup.throttled_seconds, reference.domain, credential_id)
            THROTTLED.set_function(wait)


class CacheState(msgspec.Struct, frozen=True, gc=False):
    """A query's answer from the cache, the metric label of that, and the target of the lookup that is due, if any."""

    answer: Answer
    result: str
    due: Target | None = None


class CacheLookup:
    """Combines the image cache with current failures, the registry hosts' breakers and the state of the store."""

    def __init__(
        self,
        cache: ImageCache,
        failures: Failures,
        registry_lookup: RegistryLookup,
        persistence: Persistence,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._failures = failures
        self._registry_lookup = registry_lookup
        self._persistence = persistence
        self._clock = clock

    def look_up(self, query: ImageQuery, keyring: Keyring) -> CacheState:
        """The state of the query for the keyring's credentials. No I/O."""
        target = self._cache.references.target_of(query.reference)
        if isinstance(target, Failure):
            return CacheState(target, "negative")
        credential_ids = keyring.credential_ids_for(target.reference)
        for credential_id in credential_ids:
            known = self._cache.find(target, credential_id)
            if known is None:
                continue
            now = self._clock()
            if self._cache.is_fresh(known, query, target, credential_id, now):
                return CacheState(known.content, "hit")
            if now - known.confirmed_at < self._cache.lifetimes.stale_seconds:
                return CacheState(
                    known.content,
                    "stale",
                    None if self._registry_lookup.expected_failure(target, credential_id) else target,
                )
        failure = self._current_failure(target, keyring, credential_ids)
        if not failure and not keyring.is_due(target.reference) and not self._persistence.may_know(credential_ids):
            # Only the registry could answer.
            failure = summary(self._registry_lookup.expected_failure(target, each) for each in credential_ids)
        failure = judged(failure, is_unread=keyring.is_unread(target.reference))
        return CacheState(failure, "negative") if failure else CacheState(None, "", target)

    def _current_failure(
        self, target: Target, keyring: Keyring, credential_ids: Sequence[CredentialId]
    ) -> Failure | None:
        """The failure that still holds; None if the keyring may by now have another credential to try."""
        failure = summary(self._failures.current(target, credential_id) for credential_id in credential_ids)
        if failure and depends_on_credential(failure) and keyring.is_due(target.reference):
            return None
        return failure
