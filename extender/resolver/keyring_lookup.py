"""One lookup with a keyring: in the cache and the store for its credentials, then at the registry with one after the
other.

`credential_order.py` has their order, and `registry_lookup.py` asks the registry with one of them.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from extender.credentials.keyring import Credential, CredentialId, Keyring
from extender.images.content import Failure
from extender.images.manifest import Image
from extender.resolver.credential_order import CredentialOrder
from extender.resolver.failures import DENIED, NEXT_CREDENTIAL, judged, summary
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery
from extender.resolver.persistence import Persistence
from extender.resolver.references import Target
from extender.resolver.registry_lookup import RegistryLookup

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
            if isinstance(outcome, Failure) and outcome.cause in NEXT_CREDENTIAL:
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
