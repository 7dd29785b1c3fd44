"""From image references to what is known of them: at once from memory, or from lookups that are worth waiting for.

Knows when an answer is fresh, stale or none, and who waits for what. What a lookup asks a registry is `lookups.py`'s
business, what may be told to whom is `memory.py`'s.
"""

import asyncio
import math
import random as stdlib_random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import structlog
from prometheus_client import Histogram

from extender.images.manifest import Image
from extender.metrics import REGISTRY, counter, gauge
from extender.placement.facts import Answer, Cause, Failure
from extender.registry.image import ManifestClient
from extender.registry.keyring import ANONYMOUS, Credential, Keyring, Scope
from extender.resolver.failures import Failures, summary
from extender.resolver.flights import Flights
from extender.resolver.lookups import Lookups
from extender.resolver.memory import Known, Memory
from extender.resolver.references import References, Target
from extender.resolver.tables import PackedDigest

R = TypeVar("R", Known, Image)

log = structlog.get_logger()

LOOKUPS = counter(
    "multiarch_lookups_total",
    "Images asked for, by what answered: memory (hit, stale, negative), a lookup already under way (shared), or one of "
    "their own, which ended in content (fetched) or not (error). Refreshing in the background counts as a lookup too.",
    "result",
    ("hit", "stale", "shared", "fetched", "negative", "error"),
)
DURATION = Histogram(
    "multiarch_lookup_duration_seconds",
    "From the start of a lookup to its end, queueing for its registry included.",
    registry=REGISTRY,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
IMAGES = gauge(
    "multiarch_images",
    "Digests whose platforms are known, names whose last lookup failed, and lookups in flight.",
    "state",
    ("known", "failed", "in_flight"),
)

# Lookups started and not ended, most of them queueing: some 3 KB each. Beyond that an image stays pending, and is
# looked up when it is next asked for.
_MOST_FLIGHTS = 10_000
_MOST_TEXTS = 8_192
_FEWEST_FAILURES = 1_000
_ENDED = Failure(Cause.LOOKING_UP, "its lookup was ended before it came to anything")


class Lookup(msgspec.Struct, frozen=True):
    """An image asked for. `always`: its tag is resolved anew whenever a pod starts (imagePullPolicy Always)."""

    reference: str
    always: bool = False


class _Standing(msgspec.Struct, frozen=True):
    """What memory says of a lookup, the label under which that counts, and what to look up now, if anything."""

    answer: Answer
    result: str
    due: Target | None = None
    credentials: tuple[Credential, ...] = ()


_FlightKey = tuple[str, PackedDigest, tuple[Scope, ...]]  # repository, tag or digest, scopes in the order of trying


class Resolver:
    """What images run on, for those who present credentials. For one event loop and no threads.

    A tag's meaning is fresh for `tag_seconds` (`always_seconds` for `latest` and where a lookup says so), then it is
    refreshed in the background while it serves on; `stale_seconds` after the registry last confirmed it, it is no
    answer any more. The right to know what a digest is ages like a tag, except that what is public stays so.
    Failures stand as long as `failures.py` says, and none displaces an answer but *denied*, which takes it away.
    `size` bounds each table; `clock` gives monotonic seconds, `random` numbers from 0 up to 1.
    """

    def __init__(
        self,
        client: ManifestClient,
        *,
        size: int,
        tag_seconds: float,
        always_seconds: float,
        stale_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float] = stdlib_random.random,
    ) -> None:
        self._tag_seconds = tag_seconds
        self._always_seconds = always_seconds
        self._stale_seconds = stale_seconds
        self._clock = clock
        self._references = References(min(size, _MOST_TEXTS))
        self._memory = Memory(size)
        self._failures = Failures(max(size // 10, _FEWEST_FAILURES), clock, random)
        self._lookups = Lookups(client, self._memory, self._failures, clock=clock, random=random)
        self._finding: Flights[_FlightKey, Known | Failure] = Flights(_MOST_FLIGHTS)
        self._describing: Flights[_FlightKey, Image | Failure] = Flights(_MOST_FLIGHTS)
        for state, child in IMAGES.items():
            child.set_function(partial(self._count, state))

    def peek(self, lookup: Lookup, keyring: Keyring) -> Answer:
        """What is known now, fresh or stale; None if nothing is. No I/O and no task; a few microseconds."""
        standing = self._stand(lookup, keyring)
        _tally(standing)
        return standing.answer

    def start(self, lookup: Lookup, keyring: Keyring) -> None:
        """Sees to it that a lookup is under way, unless what is known is fresh or a failure still stands."""
        self._fly(self._stand(lookup, keyring))

    async def resolve_all(
        self, lookups: Sequence[Lookup], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        """One answer per lookup, in order, after `wait_seconds` at most: from memory, or from lookups side by side.

        Lookups that have not ended by then go on, and their answer is None. Stale content is an answer at once and is
        refreshed in the background; with `revalidate` refreshing is waited for like any lookup. Cancelling the call
        ends no lookup.
        """
        standings = [self._stand(lookup, keyring) for lookup in lookups]
        for standing in standings:
            _tally(standing)
        flights = [self._fly(standing) for standing in standings]
        awaited = [
            flight
            for standing, flight in zip(standings, flights, strict=True)
            if flight and (revalidate or standing.answer is None)
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=wait_seconds)
        return [self._landed(*each, keyring) for each in zip(lookups, standings, flights, strict=True)]

    async def describe(self, reference: str, keyring: Keyring) -> Image | Failure:
        """Everything about one image, asked of its registry however long that takes; or the failure that stands."""
        target = self._references.target_of(reference)
        if isinstance(target, Failure):
            LOOKUPS["negative"].inc()
            return target
        credentials = keyring.credentials_for(target.reference)
        flight = self._describing.join(
            _flight_key(target, credentials), lambda: self._look_up(self._lookups.describe, target, credentials)
        )
        if flight is None:
            LOOKUPS["error"].inc()
            return _ENDED
        await asyncio.wait([flight])
        return _ENDED if flight.cancelled() else flight.result()

    def counts(self) -> Mapping[str, int]:
        """How many digests are `known`, how many names' last lookup `failed`, and how many lookups are `in_flight`."""
        return {state: self._count(state) for state in IMAGES}

    async def close(self) -> None:
        """No lookup is under way any more and none will start; who waits for one gets what memory has."""
        await self._finding.close()
        await self._describing.close()
        await self._lookups.close()
        for child in IMAGES.values():
            child.set_function(float)

    def _count(self, state: str) -> int:
        match state:
            case "known":
                return len(self._memory)
            case "failed":
                return len(self._failures)
            case _:
                return len(self._finding) + len(self._describing)

    def _stand(self, lookup: Lookup, keyring: Keyring) -> _Standing:
        target = self._references.target_of(lookup.reference)
        if isinstance(target, Failure):
            return _Standing(target, "negative")
        credentials = keyring.credentials_for(target.reference)
        for credential in credentials:
            known = self._memory.find(target, credential.scope)
            age_seconds = self._clock() - known.proven_at if known else math.inf
            if known and age_seconds < self._fresh_seconds(lookup, target, credential):
                return _Standing(known.content, "hit")
            if known and age_seconds < self._stale_seconds:
                may_ask = not (self._failures.standing(target, credential.scope) or self._lookups.resting(target))
                return _Standing(known.content, "stale", target if may_ask else None, credentials)
        failure = summary(self._failures.standing(target, credential.scope) for credential in credentials)
        failure = failure or self._lookups.resting(target)
        return _Standing(failure, "negative") if failure else _Standing(None, "", target, credentials)

    def _fresh_seconds(self, lookup: Lookup, target: Target, credential: Credential) -> float:
        if target.reference.digest:
            return math.inf if credential.scope == ANONYMOUS.scope else self._tag_seconds
        return self._always_seconds if lookup.always or target.name == "latest" else self._tag_seconds

    def _fly(self, standing: _Standing) -> asyncio.Task[Known | Failure] | None:
        """The flight in which what is due is looked up; None if nothing is due, or too many are under way."""
        target, credentials = standing.due, standing.credentials
        if target is None:
            return None
        key = _flight_key(target, credentials)
        if standing.answer is None and self._finding.is_under_way(key):
            LOOKUPS["shared"].inc()
        flight = self._finding.join(key, lambda: self._look_up(self._lookups.find, target, credentials))
        if flight is None:
            LOOKUPS["error"].inc()
        return flight

    async def _look_up(
        self,
        ask: Callable[[Target, tuple[Credential, ...]], Awaitable[R | Failure]],
        target: Target,
        credentials: tuple[Credential, ...],
    ) -> R | Failure:
        started = self._clock()
        outcome = await ask(target, credentials)
        DURATION.observe(self._clock() - started)
        LOOKUPS["error" if isinstance(outcome, Failure) else "fetched"].inc()
        return outcome

    def _landed(
        self, lookup: Lookup, standing: _Standing, flight: asyncio.Task[Known | Failure] | None, keyring: Keyring
    ) -> Answer:
        """The answer after the wait. A lookup that failed gives way to what memory still has, unless it was denied."""
        if flight is None or not flight.done() or flight.cancelled():
            return standing.answer
        outcome = flight.result()
        return outcome.content if isinstance(outcome, Known) else self._stand(lookup, keyring).answer or outcome


def _tally(standing: _Standing) -> None:
    """Counts what memory answered; what it did not is counted by its flight, which may serve several."""
    if standing.answer is not None:
        LOOKUPS[standing.result].inc()


def _flight_key(target: Target, credentials: tuple[Credential, ...]) -> _FlightKey:
    return target.repository, target.name, tuple(credential.scope for credential in credentials)
