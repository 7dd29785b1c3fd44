"""The state of an image in the cache (fresh, stale, negative or missing), and whether a lookup is due.

This file starts no lookup, does not wait and counts nothing.
"""

from collections.abc import Callable, Sequence

import msgspec

from extender.credentials.keyring import CredentialId, Keyring
from extender.images.content import Answer, Failure
from extender.resolver.failures import NEXT_CREDENTIAL, Failures, judged, summary
from extender.resolver.image_cache import ImageCache, ImageQuery
from extender.resolver.persistence import Persistence
from extender.resolver.references import Target
from extender.resolver.registry_lookup import RegistryLookup


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
                    known.content, "stale", None if self._expected(target, credential_id, keyring) else target
                )
        failure = self._current_failure(target, keyring, credential_ids)
        if not failure and not keyring.is_due(target.reference) and not self._persistence.may_know(credential_ids):
            # Only the registry could answer.
            failure = summary(self._expected(target, each, keyring) for each in credential_ids)
        failure = judged(failure, is_unread=keyring.is_unread(target.reference))
        return CacheState(failure, "negative") if failure else CacheState(None, "", target)

    def _expected(self, target: Target, credential_id: CredentialId, keyring: Keyring) -> Failure | None:
        return self._registry_lookup.expected_failure(target, credential_id, keyring.tenant)

    def _current_failure(
        self, target: Target, keyring: Keyring, credential_ids: Sequence[CredentialId]
    ) -> Failure | None:
        """The failure that still holds; None if the keyring may by now have another credential to try."""
        failure = summary(self._failures.current(target, credential_id) for credential_id in credential_ids)
        if failure and failure.cause in NEXT_CREDENTIAL and keyring.is_due(target.reference):
            return None
        return failure
