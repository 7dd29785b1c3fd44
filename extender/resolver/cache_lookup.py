"""The state of an image in the cache: fresh, stale, failed lately, or not known; and whether it is due for a lookup.

Starts no lookup, waits for nothing and counts nothing.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from extender.credentials.keyring import CredentialId, Keyring
from extender.images.content import Answer, Failure
from extender.resolver.failures import NEXT_CREDENTIAL, Failures, summary
from extender.resolver.image_cache import ImageCache, ImageQuery
from extender.resolver.persistence import Persistence
from extender.resolver.references import Target
from extender.resolver.registry_lookup import RegistryLookup


class CacheState(msgspec.Struct, frozen=True):
    """What memory says of a lookup, the label under which that counts, and what to look up now, if anything."""

    answer: Answer
    result: str
    due: Target | None = None


class CacheLookup:
    """Reads the image cache together with failures, the registries' breakers and the store."""

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
        """Whatever there is to say of the lookup."""
        target = self._cache.references.target_of(query.reference)
        if isinstance(target, Failure):
            return CacheState(target, "negative")
        credential_ids = keyring.credential_ids_for(target.reference)
        for credential_id in credential_ids:
            known = self._cache.find(target, credential_id)
            age_seconds = self._clock() - known.confirmed_at if known else math.inf
            if known and age_seconds < self._cache.fresh_seconds(query, target, credential_id):
                return CacheState(known.content, "hit")
            if known and age_seconds < self._cache.lifetimes.stale_seconds:
                may_ask = not (
                    self._failures.current(target, credential_id) or self._registry_lookup.host_failure(target)
                )
                return CacheState(known.content, "stale", target if may_ask else None)
        failure = self._current_failure(target, keyring, credential_ids)
        if not failure and not keyring.is_due(target.reference) and not self._persistence.may_know(credential_ids):
            failure = self._registry_lookup.host_failure(target)  # nobody but the registry could tell more
        return CacheState(failure, "negative") if failure else CacheState(None, "", target)

    def _current_failure(
        self, target: Target, keyring: Keyring, credential_ids: Sequence[CredentialId]
    ) -> Failure | None:
        """Why there is no content, unless that is worth another try: by now there may be another credential."""
        failure = summary(self._failures.current(target, credential_id) for credential_id in credential_ids)
        if failure and failure.cause in NEXT_CREDENTIAL and keyring.is_due(target.reference):
            return None
        return failure
