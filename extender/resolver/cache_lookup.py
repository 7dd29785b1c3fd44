"""What memory says of an image asked for: fresh, stale, a failure that still stands, or nothing.

Knows lifetimes and which credentials' word counts, and what is to be looked up. Starts no lookup, waits for nothing
and counts nothing.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from extender.credentials.keyring import ANONYMOUS, CredentialId, Keyring
from extender.images.content import Answer, Failure
from extender.resolver.failures import NEXT_CREDENTIAL, Failures, summary
from extender.resolver.image_cache import ImageCache
from extender.resolver.persistence import Persistence
from extender.resolver.references import References, Target
from extender.resolver.registry_lookup import RegistryLookup


class ImageQuery(msgspec.Struct, frozen=True):
    """An image asked for. `always`: its tag is resolved anew whenever a pod starts (imagePullPolicy Always)."""

    reference: str
    always: bool = False


class CacheState(msgspec.Struct, frozen=True):
    """What memory says of a lookup, the label under which that counts, and what to look up now, if anything."""

    answer: Answer
    result: str
    due: Target | None = None


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a tag's meaning is fresh, where it must be resolved often, and where nobody confirms it."""

    tag_seconds: float
    always_seconds: float
    stale_seconds: float


class CacheLookup:
    """Memory, failures and the state of hosts and store, seen together."""

    def __init__(
        self,
        references: References,
        cache: ImageCache,
        failures: Failures,
        queries: RegistryLookup,
        persistence: Persistence,
        lifetimes: Lifetimes,
        clock: Callable[[], float],
    ) -> None:
        self._references = references
        self._cache = cache
        self._failures = failures
        self._registry_lookup = queries
        self._persistence = persistence
        self._lifetimes = lifetimes
        self._clock = clock

    def fresh(self, queries: Sequence[ImageQuery], keyring: Keyring) -> list[Answer] | None:
        """The contents of all, in order, if each is known and fresh; else None. A microsecond or two each.

        This is what nearly every request meets, so it builds nothing but the list; `look_up` says the same of each.
        """
        now = self._clock()
        target_of, find, credential_ids_for = self._references.target_of, self._cache.find, keyring.credential_ids_for
        contents: list[Answer] = []
        for query in queries:
            target = target_of(query.reference)
            if isinstance(target, Failure):
                return None
            for credential_id in credential_ids_for(target.reference):
                known = find(target, credential_id)
                if known is not None:
                    break
            else:
                return None
            if now - known.confirmed_at >= self.fresh_seconds(query, target, credential_id):
                return None
            contents.append(known.content)
        return contents

    def look_up(self, query: ImageQuery, keyring: Keyring) -> CacheState:
        """Whatever there is to say of the lookup."""
        target = self._references.target_of(query.reference)
        if isinstance(target, Failure):
            return CacheState(target, "negative")
        credential_ids = keyring.credential_ids_for(target.reference)
        for credential_id in credential_ids:
            known = self._cache.find(target, credential_id)
            age_seconds = self._clock() - known.confirmed_at if known else math.inf
            if known and age_seconds < self.fresh_seconds(query, target, credential_id):
                return CacheState(known.content, "hit")
            if known and age_seconds < self._lifetimes.stale_seconds:
                may_ask = not (self._failures.current(target, credential_id) or self._registry_lookup.resting(target))
                return CacheState(known.content, "stale", target if may_ask else None)
        failure = self._current_failure(target, keyring, credential_ids)
        if not failure and not keyring.is_due(target.reference) and not self._persistence.may_know(credential_ids):
            failure = self._registry_lookup.resting(target)  # nobody but the registry could tell more
        return CacheState(failure, "negative") if failure else CacheState(None, "", target)

    def fresh_seconds(self, query: ImageQuery, target: Target, credential_id: CredentialId) -> float:
        """For how long what was proven to `credential_id` needs no confirmation."""
        lifetimes = self._lifetimes
        if target.reference.digest:
            return math.inf if credential_id == ANONYMOUS.id else lifetimes.tag_seconds
        return lifetimes.always_seconds if query.always or target.name == "latest" else lifetimes.tag_seconds

    def _current_failure(
        self, target: Target, keyring: Keyring, credential_ids: Sequence[CredentialId]
    ) -> Failure | None:
        """Why there is no content, unless that is worth another try: by now there may be another credential."""
        failure = summary(self._failures.current(target, credential_id) for credential_id in credential_ids)
        if failure and failure.cause in NEXT_CREDENTIAL and keyring.is_due(target.reference):
            return None
        return failure
