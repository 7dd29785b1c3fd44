"""What memory says of an image asked for: fresh, stale, a failure that still stands, or nothing.

Knows lifetimes and which credentials' word counts, and what is to be looked up. Starts no lookup, waits for nothing
and counts nothing.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from extender.credentials.keyring import ANONYMOUS, Keyring, Scope
from extender.placement.facts import Answer, Failure
from extender.resolver.failures import NEXT_CREDENTIAL, Failures, summary
from extender.resolver.image_cache import Memory
from extender.resolver.persistence import Persistence
from extender.resolver.references import References, Target
from extender.resolver.registry_lookup import Lookups


class Lookup(msgspec.Struct, frozen=True):
    """An image asked for. `always`: its tag is resolved anew whenever a pod starts (imagePullPolicy Always)."""

    reference: str
    always: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What memory says of a lookup, the label under which that counts, and what to look up now, if anything."""

    answer: Answer
    result: str
    due: Target | None = None


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a tag's meaning is fresh, where it must be resolved often, and where nobody confirms it."""

    tag_seconds: float
    always_seconds: float
    stale_seconds: float


class Recollection:
    """Memory, failures and the state of hosts and store, seen together."""

    def __init__(
        self,
        references: References,
        memory: Memory,
        failures: Failures,
        lookups: Lookups,
        persistence: Persistence,
        lifetimes: Lifetimes,
        clock: Callable[[], float],
    ) -> None:
        self._references = references
        self._memory = memory
        self._failures = failures
        self._lookups = lookups
        self._persistence = persistence
        self._lifetimes = lifetimes
        self._clock = clock

    def fresh(self, lookups: Sequence[Lookup], keyring: Keyring) -> list[Answer] | None:
        """The contents of all, in order, if each is known and fresh; else None. A microsecond or two each.

        This is what nearly every request meets, so it builds nothing but the list; `stand` says the same of each.
        """
        now = self._clock()
        target_of, find, scopes_for = self._references.target_of, self._memory.find, keyring.scopes_for
        contents: list[Answer] = []
        for lookup in lookups:
            target = target_of(lookup.reference)
            if isinstance(target, Failure):
                return None
            for scope in scopes_for(target.reference):
                known = find(target, scope)
                if known is not None:
                    break
            else:
                return None
            if now - known.proven_at >= self.fresh_seconds(lookup, target, scope):
                return None
            contents.append(known.content)
        return contents

    def stand(self, lookup: Lookup, keyring: Keyring) -> Standing:
        """Whatever there is to say of the lookup."""
        target = self._references.target_of(lookup.reference)
        if isinstance(target, Failure):
            return Standing(target, "negative")
        scopes = keyring.scopes_for(target.reference)
        for scope in scopes:
            known = self._memory.find(target, scope)
            age_seconds = self._clock() - known.proven_at if known else math.inf
            if known and age_seconds < self.fresh_seconds(lookup, target, scope):
                return Standing(known.content, "hit")
            if known and age_seconds < self._lifetimes.stale_seconds:
                may_ask = not (self._failures.standing(target, scope) or self._lookups.resting(target))
                return Standing(known.content, "stale", target if may_ask else None)
        failure = self._standing_failure(target, keyring, scopes)
        if not failure and not keyring.is_due(target.reference) and not self._persistence.may_know(scopes):
            failure = self._lookups.resting(target)  # nobody but the registry could tell more
        return Standing(failure, "negative") if failure else Standing(None, "", target)

    def fresh_seconds(self, lookup: Lookup, target: Target, scope: Scope) -> float:
        """For how long what was proven to `scope` needs no confirmation."""
        lifetimes = self._lifetimes
        if target.reference.digest:
            return math.inf if scope == ANONYMOUS.scope else lifetimes.tag_seconds
        return lifetimes.always_seconds if lookup.always or target.name == "latest" else lifetimes.tag_seconds

    def _standing_failure(self, target: Target, keyring: Keyring, scopes: Sequence[Scope]) -> Failure | None:
        """Why there is no content, unless that is worth another try: by now there may be another credential."""
        failure = summary(self._failures.standing(target, scope) for scope in scopes)
        if failure and failure.cause in NEXT_CREDENTIAL and keyring.is_due(target.reference):
            return None
        return failure
