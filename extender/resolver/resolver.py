"""Resolves image references: from the cache without waiting, or by lookups that concurrent callers share.

`image_cache.py` decides which credential gets which answer, and `lookups.py` is one lookup. This file decides
when one is due, and has those that are under way.
"""

import asyncio
import contextvars
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import structlog
from prometheus_client import Histogram

from extender.credentials.keyring import NO_OPERATOR, CredentialId, Keyring
from extender.fetcher.messages import PullAccess
from extender.images.content import Answer, Content, Evidence, Failure
from extender.images.failures import ENDED, OVERDUE, OVERDUE_SECONDS, UNREAD, depends_on_credential
from extender.images.manifest import Image
from extender.images.reference import PackedDigest
from extender.images.stated import StatedImages, image_of
from extender.metrics import REGISTRY, gauge
from extender.resolver.failures import FEWEST_FAILURES, Failures
from extender.resolver.image_cache import LOOKUPS, CachedImage, ImageCache, ImageQuery, Lifetimes, Target
from extender.resolver.lookups import THROTTLED, Lookup, LookupResult, Lookups, Sources
from extender.resolver.persistence import Persistence
from extender.turns import NoTurn, Slots, Turns

log = structlog.get_logger()

DURATION = Histogram(
    "multiarch_lookup_duration_seconds",
    "From the start of a lookup to its end, waiting included.",
    registry=REGISTRY,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
IMAGES = gauge(
    "multiarch_images",
    "Known digests, failed names, and lookups in flight.",
    "state",
    ("known", "failed", "in_flight"),
)

# Lookups under way, and those of one tenant: as many as may ask registries at a time, and a hundred that load their
# credentials or wait for a turn. An image beyond that stays pending until the next request for it. 10 KB each.
_MOST_LOOKUPS, _MOST_LOOKUPS_EACH = 2_000, 116

# Lookups that ask registries at a time, those of one tenant, and those at one host: so that a host that hangs, or a
# tenant that names many of them, holds up only so many. Sixteen at a registry that answers in 50 ms are 320 lookups a
# second, and open as many connections to it as the pulls of a few nodes. With more of one tenant, a registry whose
# answers are dear to read makes the others wait longer.
_AT_ONCE, _EACH, _AT_HOST = 256, 16, 16

_Key = tuple[str, PackedDigest, Hashable, str, bool]  # repository, tag or digest, keyring, tenant, whether detailed
_Task = asyncio.Task[LookupResult | Failure]


class CacheState(msgspec.Struct, frozen=True, gc=False):
    """A query's answer from the cache, the metric label of that, and the lookup that is due, if any.

    If the answer is what a registry has shown, `known` is its row, and `credential_id` for which credential that is.
    """

    answer: Answer
    result: str
    due: Lookup | None = None
    known: CachedImage | None = None
    credential_id: CredentialId = NO_OPERATOR


class _UnderWay(NamedTuple):
    """A lookup, and since when it is under way."""

    task: _Task
    since: float


class Resolver:
    """Gives what images run on, for the credentials of a keyring. For one event loop and no threads.

    The meaning of a tag is fresh for `tag_seconds`, or for a minute if the tag is `latest` or the query says
    `always`. It is then stale: callers still get it while a lookup refreshes it in the background. It expires
    `stale_seconds` after the registry last confirmed it. A credential's access to a digest ages like a tag, but
    anonymous access stays fresh. A failure holds for as long as `failures.py` says. Only *denied* removes an answer,
    that of its own name, and has the credential's other names in the repository confirmed; no other failure replaces
    one.

    `size` bounds each table. `clock` gives monotonic seconds, `random` numbers from 0 up to 1. A lookup reads
    `persistence` before it asks a registry; the resolver closes it. Without it nothing outlives the process.
    """

    def __init__(  # noqa: PLR0913 - settings and parts, each by its name
        self,
        sources: Sources,
        *,
        size: int,
        tag_seconds: float,
        stale_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        persistence: Persistence | None = None,
        lookup_seconds: float = 20.0,
        short_names: bool = False,
        stated: StatedImages | None = None,
    ) -> None:
        """`lookup_seconds` bounds the requests of a lookup. `short_names` and `stated` are as in `References`."""
        self._clock = clock
        self._context = contextvars.copy_context()
        self._persistence = persistence
        lifetimes = Lifetimes(tag_seconds=tag_seconds, stale_seconds=stale_seconds)
        self.cache = ImageCache(size, lifetimes, clock, persistence, short_names=short_names, stated=stated)
        self._failures = Failures(max(size // 10, FEWEST_FAILURES), clock, random)
        self._lookups = Lookups(
            sources,
            self.cache,
            self._failures,
            persistence,
            turns=Turns(total=_AT_ONCE, each=_EACH, at_host=_AT_HOST),
            clock=clock,
            random=random,
            lookup_seconds=lookup_seconds,
        )
        self._loading: asyncio.Task[None] | None = None
        self._under_way: dict[_Key, _UnderWay] = {}
        self._slots = Slots(_MOST_LOOKUPS, _MOST_LOOKUPS_EACH)
        self.is_closed = False
        for state, child in IMAGES.items():
            child.set_function(partial(self._count, state))

    async def load(self, wait_seconds: float) -> None:
        """Loads the store's rows into the cache, some 100,000 a second; after `wait_seconds` in the background.

        Until the load has succeeded, each lookup reads its own rows from the store.
        """
        if self._persistence:
            self._loading = asyncio.create_task(self._persistence.load(self.cache.load))
            await asyncio.wait([self._loading], timeout=wait_seconds)

    def peek(self, query: ImageQuery, keyring: Keyring) -> Answer:
        """The cached answer, fresh or stale; None if there is none, and `OVERDUE` if its lookup takes its time.

        No I/O and no task; a few microseconds.
        """
        answers = self.cache.fresh([query], keyring)
        if answers is not None:
            return answers[0]
        state = self._look_up(query, keyring)
        _tally(state)
        return state.answer or self._overdue(state)

    def peek_all(self, queries: Sequence[ImageQuery], keyring: Keyring) -> list[Answer]:
        """As `peek` for each query, in order. Cheaper than that many calls of `peek` if all answers are fresh."""
        answers = self.cache.fresh(queries, keyring)
        return [self.peek(query, keyring) for query in queries] if answers is None else answers

    def evidence(self, query: ImageQuery, keyring: Keyring) -> Evidence:
        """The cached answer as `peek` gives it, and where it comes from. Starts nothing and counts nothing."""
        state = self._look_up(query, keyring)
        target, known = self.cache.references.target_of(query.reference), state.known
        if known is None or not isinstance(target, Target):
            return Evidence(answer=state.answer)
        return Evidence(
            answer=known.content,
            digest=known.digest,
            credential=known.label or keyring.label_of(target.reference, state.credential_id),
            age_seconds=max(self._clock() - known.confirmed_at, 0.0),
            is_fresh=state.result == "hit",
        )

    def start(self, query: ImageQuery, keyring: Keyring) -> None:
        """Starts a lookup or joins the one in flight, unless the cached answer is fresh or a failure still holds."""
        self._start_call(self._look_up(query, keyring))

    async def resolve_all(
        self, queries: Sequence[ImageQuery], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        """One answer per query, in order, after `wait_seconds` at most: from the cache, or from concurrent lookups.

        A lookup that has not ended by then continues; its answer is what `peek` gives. Stale content is an answer
        without waiting, and a lookup refreshes it in the background. With `revalidate` the caller waits for that
        lookup too. Cancelling the call does not cancel its lookups.
        """
        answers = self.cache.fresh(queries, keyring)
        if answers is not None:
            return answers
        states = [self._look_up(query, keyring) for query in queries]
        for state in states:
            _tally(state)
        calls = [self._start_call(state) for state in states]
        awaited = [
            call for state, call in zip(states, calls, strict=True) if call and (revalidate or state.answer is None)
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=wait_seconds)
        return [self._finish(*each, keyring) for each in zip(queries, states, calls, strict=True)]

    async def confirm_all(
        self, queries: Sequence[ImageQuery], keyring: Keyring, age_seconds: float, wait_seconds: float
    ) -> None:
        """Asks the registries again for tags that they last confirmed more than `age_seconds` ago, fresh or not.

        Returns when all have answered, after `wait_seconds` at most. A registry that fails changes no answer.
        """
        calls = [self._start_confirmation(query, keyring, age_seconds) for query in queries]
        due = [call for call in calls if call]
        if due:
            await asyncio.wait(due, timeout=wait_seconds)

    async def describe(self, reference: str, keyring: Keyring) -> Image | Failure:
        """Everything about one image from its registry, or its failure. Waits without a time limit.

        What the operator says of an image stands in place of what its registry says.
        """
        target = self.cache.references.target_of(reference)
        if not isinstance(target, Target):
            _tally(_state_of(target))
            return target if isinstance(target, Failure) else image_of(target)
        ids = keyring.credential_ids_for(target.reference)
        call = self._join(Lookup(target, keyring, ids, is_detailed=True))
        if call is None:
            return ENDED
        await asyncio.wait([call])
        outcome = ENDED if call.cancelled() else call.result()
        if isinstance(outcome, Failure):
            return outcome
        assert outcome.image  # noqa: S101 - the details were asked for
        return outcome.image

    async def access_of(self, target: Target, keyring: Keyring) -> PullAccess:
        """What the keyring has for the image: for other questions than what it is. Raises NoTurn."""
        return await self._lookups.access_of(target, keyring)

    def counts(self) -> Mapping[str, int]:
        """How many digests are `known`, how many names' last lookup `failed`, and how many lookups are `in_flight`."""
        return {state: self._count(state) for state in IMAGES}

    async def flush(self) -> None:
        """Writes the rows that wait for the store. Rows that the store does not accept now keep waiting."""
        if self._persistence:
            await self._persistence.flush()

    async def close(self) -> None:
        """Cancels all lookups, prevents new ones and closes the store. Waiting callers get what the cache has."""
        if self._loading:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        self.is_closed = True
        lookups = [each.task for each in self._under_way.values()]
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        self._under_way.clear()  # of those that had not begun
        if self._persistence:
            await self._persistence.close()
        for each in (THROTTLED, *IMAGES.values()):
            each.set_function(float)

    def _look_up(self, query: ImageQuery, keyring: Keyring) -> CacheState:
        """The state of the query for the keyring's credentials. No I/O."""
        target = self.cache.references.target_of(query.reference)
        if not isinstance(target, Target):
            return _state_of(target)
        ids = keyring.credential_ids_for(target.reference)
        for credential_id in ids:
            known = self.cache.find(target, credential_id)
            if known is None:
                continue
            now = self._clock()
            if self.cache.is_fresh(known, query, target, credential_id, now):
                return CacheState(known.content, "hit", None, known, credential_id)
            if now - known.confirmed_at < self.cache.lifetimes.stale_seconds:
                due = None if self._failures.get(target, ids) else Lookup(target, keyring, ids, query)
                return CacheState(known.content, "stale", due, known, credential_id)
        failure = self._current_failure(target, keyring, ids)
        return CacheState(failure, "negative") if failure else CacheState(None, "", Lookup(target, keyring, ids, query))

    def _current_failure(
        self, target: Target, keyring: Keyring, credential_ids: Sequence[CredentialId]
    ) -> Failure | None:
        """The failure that still holds; None if the keyring may by now have another credential to try.

        That all credentials at hand are denied tells nothing if others could not be read.
        """
        failure = self._failures.get(target, credential_ids)
        if failure is None or not depends_on_credential(failure):
            return failure
        if keyring.is_due():
            return None
        return UNREAD if keyring.is_unread() else failure

    def _count(self, state: str) -> int:
        match state:
            case "known":
                return len(self.cache)
            case "failed":
                return len(self._failures)
            case _:
                return len(self._under_way)

    def _start_call(self, state: CacheState) -> _Task | None:
        """The task of the lookup that is due, new or in flight; None if none is due or too many are in flight."""
        if state.due is None:
            return None
        if state.answer is None and _key_of(state.due) in self._under_way:
            LOOKUPS["shared"].inc()
        return self._join(state.due)

    def _join(self, lookup: Lookup) -> _Task | None:
        """The lookup under way that gives the same, or a new one; None if its tenant may have no further one.

        It is a task of its own, so that no caller's deadline or end cancels it. It works for all that wait for it, and
        so in the resolver's context. Wait for it with `asyncio.wait`.
        """
        key = _key_of(lookup)
        if key in self._under_way:
            return self._under_way[key].task
        if self.is_closed or not self._slots.take(lookup.keyring.tenant):
            LOOKUPS["refused"].inc()
            return None
        task = asyncio.get_running_loop().create_task(self._measured(key, lookup), context=self._context.copy())
        self._under_way[key] = _UnderWay(task, self._clock())
        return task

    def _start_confirmation(self, query: ImageQuery, keyring: Keyring, age_seconds: float) -> _Task | None:
        """The task that asks the registry for a tag whose answer is older; None if there is nothing to confirm."""
        target = self.cache.references.target_of(query.reference)
        if not isinstance(target, Target) or target.reference.digest:
            return None
        ids = keyring.credential_ids_for(target.reference)
        rows = (self.cache.find(target, each) for each in ids)
        known = next((row for row in rows if row), None)
        if known is None or self._clock() - known.confirmed_at <= age_seconds:
            return None
        return self._join(Lookup(target, keyring, ids))

    async def _measured(self, key: _Key, lookup: Lookup) -> LookupResult | Failure:
        """The outcome of one lookup, which is measured and counted, and is not under way any more."""
        started = self._clock()
        try:
            outcome = await self._lookups.look_up(lookup)
        except NoTurn:
            LOOKUPS["refused"].inc()
            return ENDED
        finally:
            del self._under_way[key]
            self._slots.give_back(lookup.keyring.tenant)
        DURATION.observe(self._clock() - started)
        LOOKUPS["error" if isinstance(outcome, Failure) else "fetched"].inc()
        return outcome

    def _finish(self, query: ImageQuery, state: CacheState, call: _Task | None, keyring: Keyring) -> Answer:
        """The answer after the wait: the lookup's content, else what the cache has by now, else the lookup's failure.

        A lookup that was *denied* has removed its row from the cache.
        """
        if call is None:
            return state.answer
        if not call.done() or call.cancelled():
            return state.answer or self._look_up(query, keyring).answer or self._overdue(state)
        outcome = call.result()
        if isinstance(outcome, LookupResult):
            return outcome.known.content
        return self._look_up(query, keyring).answer or outcome

    def _overdue(self, state: CacheState) -> Failure | None:
        """`OVERDUE` if the lookup that is due is under way for too long for nodes that have the image."""
        lookup = self._under_way.get(_key_of(state.due)) if state.due else None
        return OVERDUE if lookup and self._clock() - lookup.since >= OVERDUE_SECONDS else None


def _key_of(lookup: Lookup) -> _Key:
    target, keyring = lookup.target, lookup.keyring
    return target.repository, target.name, keyring.identity, keyring.tenant, lookup.is_detailed


def _state_of(answer: Content | Failure) -> CacheState:
    """Of an image that needs no lookup."""
    return CacheState(answer, "negative" if isinstance(answer, Failure) else "hit")


def _tally(state: CacheState) -> None:
    """Counts an answer from the cache. A lookup counts itself, since several callers may share it."""
    if state.answer is not None:
        LOOKUPS[state.result].inc()
