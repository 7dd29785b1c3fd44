"""One lookup: in memory and the store for the credentials of a keyring, then one question to the registry.

What the answer teaches is recorded here: content, denials and failures. In the process that asks, `fetcher.looker` has
the order of credentials and requests.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog
from async_lru import alru_cache
from prometheus_client import Gauge

from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId, Keyring, shared_ids
from extender.errors import RegistryUnavailable
from extender.fetcher.messages import Failed, Look, PullAccess, SeenImage, failed_of
from extender.images.content import Cause, Failure, content_of
from extender.images.failures import DENIED, UNREAD, depends_on_credential
from extender.images.manifest import Image
from extender.images.reference import HUB
from extender.metrics import REGISTRY
from extender.resolver.failures import Failures
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery, Target
from extender.resolver.persistence import Persistence
from extender.turns import Turns

log = structlog.get_logger()

THROTTLED = Gauge(
    "multiarch_registry_throttled_seconds",
    "Seconds until Docker Hub, or a registry with the operator's login, is asked again after a 429; 0: none waits.",
    registry=REGISTRY,
)


class Sources(Protocol):
    """What asks registries: a fetcher, or this process itself."""

    @property
    def operator_id(self) -> CredentialId:
        """What stands for the operator's credentials now; empty if there are none."""

    async def look(self, look: Look) -> SeenImage | Failed:
        """Returns what the image is, or why that is not known. Raises nothing for what a registry does."""


class Lookup(NamedTuple):
    """What to look up for a keyring. `ids` are those of its credentials that it has without reading a secret.

    What memory or the store has as fresh for `query` suffices; without one the registry is asked whatever they have.
    `is_detailed`: it is asked for all details of the image too.
    """

    target: Target
    keyring: Keyring
    ids: tuple[CredentialId, ...]
    query: ImageQuery | None = None
    is_detailed: bool = False


class LookupResult(NamedTuple):
    """What a target is for a credential; with all details of the image, if they were asked for."""

    known: CachedImage
    image: Image | None = None


class Question(NamedTuple):
    """What registries are asked: what a target is, for a tenant's pods. `ids` stand for all credentials to try."""

    target: Target
    tenant: str
    access: PullAccess
    ids: tuple[CredentialId, ...]
    is_detailed: bool


class Lookups:
    """Looks images up with keyrings; writes what it learns into the cache and the failures.

    A question waits for a turn of its tenant. Whoever has a turn and the same question as another shares it, so there
    are no more of them than turns. Every method raises NoTurn if no turn has come in time, at a registry or for reading
    secrets; all else becomes a `Failure`.
    """

    def __init__(
        self,
        sources: Sources,
        cache: ImageCache,
        failures: Failures,
        persistence: Persistence | None,
        *,
        turns: Turns,
        clock: Callable[[], float],
        random: Callable[[], float],
        lookup_seconds: float,
    ) -> None:
        """`lookup_seconds` is how long registries have for one lookup."""
        self._sources = sources
        self._cache = cache
        self._failures = failures
        self._persistence = persistence
        self._turns = turns
        self._clock = clock
        self._random = random
        self._lookup_seconds = lookup_seconds
        self._throttled_until = 0.0
        self._ask_shared = alru_cache(maxsize=None, ttl=0, key=_key_of)(self._ask_once)
        THROTTLED.set_function(lambda: max(0.0, self._throttled_until - self._clock()))

    async def look_up(self, lookup: Lookup) -> LookupResult | Failure:
        """What a lookup gives: without the pod's secrets where that has worked; with them; with those read anew.

        Each follows if the one before was a failure that depends on the credential. That all at hand are denied tells
        nothing if others could not be read; who wants details hears so from here alone. None is read, and no registry
        is asked, if what is known suffices.
        """
        if known := await self._recall(lookup, lookup.ids):
            return LookupResult(known)
        keyring = lookup.keyring
        outcome: LookupResult | Failure = DENIED
        tried: tuple[Credential, ...] | None = None
        first = self._opened_by(lookup.target, lookup.ids)
        recalled = set(lookup.ids)
        if first in shared_ids(self._sources.operator_id):
            outcome = await self._ask(lookup, tried := (), first, recalled)
        for refresh in (False, True):
            if outcome is DENIED or (isinstance(outcome, Failure) and depends_on_credential(outcome)):
                logins = await keyring.load(lookup.target.reference, refresh=refresh)
                if logins != tried:
                    outcome = await self._ask(lookup, tried := logins, first, recalled)
        if isinstance(outcome, Failure) and depends_on_credential(outcome) and keyring.is_unread():
            return UNREAD
        return outcome

    async def access_of(self, target: Target, keyring: Keyring) -> PullAccess:
        """What the keyring has for the image: for other questions than what it is."""
        opened_by = self._opened_by(target, keyring.credential_ids_for(target.reference))
        return PullAccess(await keyring.load(target.reference), opened_by)

    def _opened_by(self, target: Target, ids: Iterable[CredentialId]) -> CredentialId:
        """The first of the credentials that has opened the image before; empty if none has."""
        return next((each for each in ids if self._cache.find(target, each)), NO_OPERATOR)

    async def _recall(self, lookup: Lookup, ids: Sequence[CredentialId]) -> CachedImage | None:
        """What the cache has as fresh for these credentials, after reading the store's rows for them."""
        query, target = lookup.query, lookup.target
        if query is None:
            return None
        if self._persistence:
            for key, known in await self._persistence.find(target, ids):
                self._cache.load(key, known)
        for credential_id in ids:
            found = self._cache.find(target, credential_id)
            if found and self._cache.is_fresh(found, query, target, credential_id, self._clock()):
                return found
        return None

    async def _ask(
        self, lookup: Lookup, logins: tuple[Credential, ...], first: CredentialId, recalled: set[CredentialId]
    ) -> LookupResult | Failure:
        """The outcome with these logins of the pod's, then the operator's credentials, then none.

        Waits for a turn, and asks unless another lookup has answered meanwhile. `recalled` are the ids for which the
        store has been read.
        """
        target, keyring = lookup.target, lookup.keyring
        ids = (*(login.id for login in logins), *shared_ids(self._sources.operator_id))
        if more := [each for each in ids if each not in recalled]:
            recalled.update(more)
            if known := await self._recall(lookup, more):
                return LookupResult(known)
        started = self._clock()
        async with self._turns.turn(keyring.tenant, target.reference.domain):
            for credential_id in () if lookup.is_detailed else ids:
                known = self._cache.find(target, credential_id)
                if known and known.confirmed_at >= started:
                    return LookupResult(known)
            question = Question(target, keyring.tenant, PullAccess(logins, first), ids, lookup.is_detailed)
            return await self._ask_shared(question)

    async def _ask_once(self, question: Question) -> LookupResult | Failure:
        """The outcome of one question, which all share that have a turn for it: `alru_cache` wraps this method.

        Several keyrings may hold the same logins, and most have none. The failure is recorded here, and so counts once.
        The bytes of what the name was known to mean need not be read again, if this repository has shown them.
        """
        target, ids = question.target, question.ids
        if failure := self._failures.get(target, ids):
            return failure
        at = self._clock()
        answer = await self._look(question, () if question.is_detailed else self._cache.known_digests(target, ids))
        learned = self._learn(question, answer, at)
        if learned is None:  # the content of the digest has been evicted meanwhile
            answer = await self._look(question)
            learned = self._learn(question, answer, at)
        assert learned  # noqa: S101 - no digest was given as known
        return learned

    async def _look(self, question: Question, known: tuple[str, ...] = ()) -> SeenImage | Failed:
        """The answer to one question. What was denied meanwhile opens nothing any more."""
        target = question.target
        look = Look(
            tenant=question.tenant,
            reference=target.asked,
            kubelet_name=target.reference,
            access=question.access,
            seconds=self._lookup_seconds,
            known=known,
        )
        try:
            answer = await self._sources.look(look)
        except Exception as exc:  # a defect of ours: the log has an id for it, and pods' authors are shown no more
            crash = f"{int(self._random() * 2**32):08x}"
            log.exception("lookup.crashed", id=crash, image=str(target.reference), exc_info=exc)
            return failed_of(RegistryUnavailable("asking for it failed"))
        for credential_id in answer.denied:
            self._cache.revoke(target, credential_id, self._clock())
        return answer

    def _learn(self, question: Question, answer: SeenImage | Failed, at: float) -> LookupResult | Failure | None:
        """Records the answer to a question that was asked `at`: what the target is for a credential, or why not.

        Returns None for a digest whose content is not known any more.
        """
        if isinstance(answer, Failed):
            return self._fail(question, answer)
        target, tenant = question.target, question.tenant
        if answer.image:
            content = content_of(answer.image)
            known: CachedImage | None = self._cache.learn(
                target, answer.by, answer.digest, content, at, tenant, answer.label, is_partial=answer.image.is_partial
            )
        else:
            known = self._cache.confirm(target, answer.by, answer.digest, at, tenant, answer.label)
        if known is None:
            return None
        self._failures.remove(target, question.ids)
        return LookupResult(known, answer.image)

    def _fail(self, question: Question, failed: Failed) -> Failure:
        failure, target = failed.failure, question.target
        self._failures.put(target, question.ids, failure, failed.retry_after, question.tenant)
        is_shared = failed.by == ANONYMOUS.id and target.reference.domain == HUB  # by the nodes' address
        is_shared = is_shared or (failed.by == self._sources.operator_id and bool(failed.by))
        if failure.cause is Cause.THROTTLED and failed.retry_after and is_shared:
            self._throttled_until = self._clock() + failed.retry_after
        log.info("lookup.failed", image=str(target.reference), cause=failure.cause.value, credential_id=failed.by)
        return failure


def _key_of(question: Question) -> Hashable:
    return question.target.repository, question.target.name, question.ids, question.is_detailed
