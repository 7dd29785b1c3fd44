"""Resolves image references: from the cache without waiting, or by lookups that callers wait for together.

`image_cache.py` decides what may be told to whom, `cache_lookup.py` when a lookup is due, `registry_lookup.py` what a
lookup asks a registry.
"""

import asyncio
import random as stdlib_random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog
from prometheus_client import Histogram

from extender.credentials.keyring import Credential, Keyring
from extender.images.content import Answer, Cause, Failure
from extender.images.digest import PackedDigest
from extender.images.manifest import Image
from extender.metrics import REGISTRY, gauge
from extender.registry.image import ManifestClient
from extender.resolver.cache_lookup import CacheLookup, CacheState
from extender.resolver.failures import FEWEST_FAILURES, NEXT_CREDENTIAL, Failures
from extender.resolver.image_cache import LOOKUPS, CachedImage, ImageCache, ImageQuery, Lifetimes
from extender.resolver.persistence import Persistence
from extender.resolver.references import Target
from extender.resolver.registry_lookup import RegistryLookup
from extender.resolver.single_flight import SingleFlight

R = TypeVar("R", CachedImage, Image)

log = structlog.get_logger()

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
_MOST_CALLS = 10_000
# Of them, those that one tenant's pods have started: half of what may ask registries at once, so that no namespace
# full of images that lead nowhere keeps the others waiting.
_MOST_CALLS_EACH = 256
_ENDED = Failure(Cause.LOOKING_UP, "its lookup was ended before it came to anything")


_CallKey = tuple[str, PackedDigest, Hashable]  # repository, tag or digest, the keyring's identity


class Resolver:
    """What images run on, for those who present credentials. For one event loop and no threads.

    A tag's meaning is fresh for `tag_seconds` (`always_seconds` for `latest` and where a lookup says so), then it is
    refreshed in the background while it serves on; `stale_seconds` after the registry last confirmed it, it is no
    answer any more. The right to know what a digest is ages like a tag, except that what is public stays so.
    Failures stand as long as `failures.py` says, and none displaces an answer but *denied*, which takes it away.
    `size` bounds each table; `clock` gives monotonic seconds, `random` numbers from 0 up to 1. `persistence`, which is
    asked before a registry is, is closed with the resolver; without it nothing outlives the process.
    """

    def __init__(  # noqa: PLR0913 - settings and parts, each by its name
        self,
        client: ManifestClient,
        *,
        size: int,
        tag_seconds: float,
        always_seconds: float,
        stale_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float] = stdlib_random.random,
        persistence: Persistence | None = None,
        most_calls: int = _MOST_CALLS,
    ) -> None:
        self._clock = clock
        self._persistence = persistence or Persistence(None, clock=clock)
        lifetimes = Lifetimes(tag_seconds=tag_seconds, always_seconds=always_seconds, stale_seconds=stale_seconds)
        self.cache = ImageCache(size, lifetimes, clock, self._persistence)
        self._failures = Failures(max(size // 10, FEWEST_FAILURES), clock, random)
        self._registry_lookup = RegistryLookup(
            client, self.cache, self._persistence, self._failures, clock=clock, random=random
        )
        self._cache_lookup = CacheLookup(
            self.cache,
            self._failures,
            self._registry_lookup,
            self._persistence,
            clock,
        )
        self._loading: asyncio.Task[None] | None = None
        self._finding: SingleFlight[_CallKey, CachedImage | Failure] = SingleFlight(most_calls, _MOST_CALLS_EACH)
        self._describing: SingleFlight[_CallKey, Image | Failure] = SingleFlight(most_calls, _MOST_CALLS_EACH)
        for state, child in IMAGES.items():
            child.set_function(partial(self._count, state))

    async def load(self, wait_seconds: float) -> None:
        """What the store keeps comes into memory, some 100,000 rows a second; after `wait_seconds` in the background.

        Until then, and where that fails, lookups ask the store for the one name they want.
        """
        load = self._persistence.load(self.cache.load, self.cache.load_content)
        self._loading = asyncio.get_running_loop().create_task(load)
        await asyncio.wait([self._loading], timeout=wait_seconds)

    def is_loaded(self) -> bool:
        """Whether `load` has ended, in whatever way, or was never begun."""
        return self._loading is None or self._loading.done()

    def peek(self, query: ImageQuery, keyring: Keyring) -> Answer:
        """What is known now, fresh or stale; None if nothing is. No I/O and no task; a few microseconds."""
        answers = self.cache.fresh([query], keyring)
        if answers is not None:
            return answers[0]
        state = self._cache_lookup.look_up(query, keyring)
        _tally(state)
        return state.answer

    def peek_all(self, queries: Sequence[ImageQuery], keyring: Keyring) -> list[Answer]:
        """As `peek`, for each lookup in order; less than as many calls of that if all are known and fresh."""
        answers = self.cache.fresh(queries, keyring)
        return [self.peek(query, keyring) for query in queries] if answers is None else answers

    def start(self, query: ImageQuery, keyring: Keyring) -> None:
        """Sees to it that a lookup is under way, unless what is known is fresh or a failure still stands."""
        self._start_call(query, self._cache_lookup.look_up(query, keyring), keyring)

    async def resolve_all(
        self, queries: Sequence[ImageQuery], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        """One answer per lookup, in order, after `wait_seconds` at most: from memory, or from lookups side by side.

        Lookups that have not ended by then go on, and their answer is None. Stale content is an answer at once and is
        refreshed in the background; with `revalidate` refreshing is waited for like any lookup. Cancelling the call
        ends no lookup.
        """
        answers = self.cache.fresh(queries, keyring)
        if answers is not None:
            return answers
        states = [self._cache_lookup.look_up(query, keyring) for query in queries]
        for state in states:
            _tally(state)
        calls = [self._start_call(*each, keyring) for each in zip(queries, states, strict=True)]
        awaited = [
            call for state, call in zip(states, calls, strict=True) if call and (revalidate or state.answer is None)
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=wait_seconds)
        return [self._finish(*each, keyring) for each in zip(queries, states, calls, strict=True)]

    async def describe(self, reference: str, keyring: Keyring) -> Image | Failure:
        """Everything about one image, asked of its registry however long that takes; or the failure that stands."""
        target = self.cache.references.target_of(reference)
        if isinstance(target, Failure):
            LOOKUPS["negative"].inc()
            return target
        call = self._describing.join(
            _call_key(target, keyring),
            lambda: self._look_up(self._registry_lookup.describe, target, keyring),
            tenant=keyring.tenant,
        )
        if call is None:
            LOOKUPS["error"].inc()
            return _ENDED
        await asyncio.wait([call])
        return _ENDED if call.cancelled() else call.result()

    def counts(self) -> Mapping[str, int]:
        """How many digests are `known`, how many names' last lookup `failed`, and how many lookups are `in_flight`."""
        return {state: self._count(state) for state in IMAGES}

    @property
    def is_closed(self) -> bool:
        """Whether no lookup can start any more."""
        return self._registry_lookup.is_closed

    async def flush(self) -> None:
        """Writes what waits for the store; what the store does not take now waits on."""
        await self._persistence.flush()

    async def close(self) -> None:
        """No lookup is under way any more and none will start; who waits for one gets what memory has."""
        if self._loading:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._finding.close()
        await self._describing.close()
        await self._registry_lookup.close()
        await self._persistence.close()
        for child in IMAGES.values():
            child.set_function(float)

    def _count(self, state: str) -> int:
        match state:
            case "known":
                return len(self.cache)
            case "failed":
                return len(self._failures)
            case _:
                return len(self._finding) + len(self._describing)

    def _start_call(
        self, query: ImageQuery, state: CacheState, keyring: Keyring
    ) -> asyncio.Task[CachedImage | Failure] | None:
        """The flight in which what is due is looked up; None if nothing is due, or too many are under way."""
        target = state.due
        if target is None:
            return None
        key = _call_key(target, keyring)
        if state.answer is None and self._finding.is_under_way(key):
            LOOKUPS["shared"].inc()
        call = self._finding.join(
            key, lambda: self._look_up(partial(self._find, query), target, keyring), tenant=keyring.tenant
        )
        if call is None:
            LOOKUPS["error"].inc()
        return call

    async def _find(
        self, query: ImageQuery, target: Target, credentials: tuple[Credential, ...]
    ) -> CachedImage | Failure:
        """What is fresh in memory now that the credentials are at hand, or in the store; else what a registry says."""
        credential_ids = [credential.id for credential in credentials]
        for key, known in await self._persistence.find(target, credential_ids):
            self.cache.load(key, known)
        for credential_id in credential_ids:
            found = self.cache.find(target, credential_id)
            if found and self._clock() - found.confirmed_at < self.cache.fresh_seconds(query, target, credential_id):
                return found
        return await self._registry_lookup.find(target, credentials)

    async def _look_up(
        self,
        ask: Callable[[Target, tuple[Credential, ...]], Awaitable[R | Failure]],
        target: Target,
        keyring: Keyring,
    ) -> R | Failure:
        started = self._clock()
        credentials = await keyring.load(target.reference)
        outcome = await ask(target, credentials)
        if isinstance(outcome, Failure) and outcome.cause in NEXT_CREDENTIAL:
            renewed = await keyring.load(target.reference, refresh=True)
            if renewed != credentials:
                self._registry_lookup.forget_failure(target, credentials, renewed)
                outcome = await ask(target, renewed)
        DURATION.observe(self._clock() - started)
        LOOKUPS["error" if isinstance(outcome, Failure) else "fetched"].inc()
        return outcome

    def _finish(
        self, query: ImageQuery, state: CacheState, call: asyncio.Task[CachedImage | Failure] | None, keyring: Keyring
    ) -> Answer:
        """The answer after the wait: what the lookup came to, else what memory has by now, unless that was denied."""
        if call is None:
            return state.answer
        if not call.done() or call.cancelled():
            return state.answer or self._cache_lookup.look_up(query, keyring).answer
        outcome = call.result()
        return (
            outcome.content
            if isinstance(outcome, CachedImage)
            else self._cache_lookup.look_up(query, keyring).answer or outcome
        )


def _tally(state: CacheState) -> None:
    """Counts what memory answered; what it did not is counted by its flight, which may serve several."""
    if state.answer is not None:
        LOOKUPS[state.result].inc()


def _call_key(target: Target, keyring: Keyring) -> _CallKey:
    return target.repository, target.name, keyring.identity
