"""One lookup: in memory and the store for the credentials of a keyring, then one question to the registry.

What the answer teaches is recorded here: content, denials and failures. In the process that asks, `fetcher.looker` has
the order of credentials and requests.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

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

T = TypeVar("T", CachedImage, Image)

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


class Question(NamedTuple):
    """What registries are asked: what a target is, for a tenant's pods. `ids` stand for all credentials to try."""

    target: Target
    tenant: str
    access: PullAccess
    ids: tuple[CredentialId, ...]


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
        self._ask = alru_cache(maxsize=None, ttl=0, key=_key_of)(self._ask_once)
        THROTTLED.set_function(lambda: max(0.0, self._throttled_until - self._clock()))

    async def find(
        self, query: ImageQuery, target: Target, keyring: Keyring, ids: tuple[CredentialId, ...]
    ) -> CachedImage | Failure:
        """What memory or the store has as fresh for the keyring's credentials; else what the registry gives.

        `ids` are those that the keyring has without reading a secret. None is read if they suffice.
        """
        read = set(ids)  # of which the store has been asked

        async def ask(question: Question) -> CachedImage | Failure:
            more = [each for each in question.ids if each not in read]
            read.update(more)
            known = await self._recall(query, target, more) if more else None
            return known or await self._take_turn(question)

        return await self._recall(query, target, ids) or await self._try(ask, target, keyring, ids)

    async def confirm(self, target: Target, keyring: Keyring, ids: tuple[CredentialId, ...]) -> CachedImage | Failure:
        """What the registry gives, whatever memory and the store have."""
        return await self._try(self._take_turn, target, keyring, ids)

    async def describe(self, target: Target, keyring: Keyring) -> Image | Failure:
        """As `confirm`, with all details of the image, which are asked for each time."""

        async def ask(question: Question) -> Image | Failure:
            async with self._turns.turn(question.tenant, target.reference.domain):
                if failure := self._failures.get(target, question.ids):
                    return failure
                at = self._clock()
                answer = await self._look(question)
                learned = self._learn(question, answer, at)
                if isinstance(learned, Failure):
                    return learned
                assert isinstance(answer, SeenImage)  # noqa: S101 - else there is a failure
                assert answer.image  # noqa: S101 - no digest was given as known
                return answer.image

        return await self._try(ask, target, keyring, keyring.credential_ids_for(target.reference))

    async def access_of(self, target: Target, keyring: Keyring) -> PullAccess:
        """What the keyring has for the image: for other questions than what it is."""
        opened_by = self._opened_by(target, keyring.credential_ids_for(target.reference))
        return PullAccess(await keyring.load(target.reference), opened_by)

    async def _try(
        self,
        ask: Callable[[Question], Awaitable[T | Failure]],
        target: Target,
        keyring: Keyring,
        ids: tuple[CredentialId, ...],
    ) -> T | Failure:
        """The outcome of `ask`: without the pod's secrets where that has worked; with them; with those read anew.

        Each follows if the one before was a failure that depends on the credential. That all at hand are denied tells
        nothing if others could not be read; who describes an image hears so from here alone.
        """
        outcome: T | Failure = DENIED
        tried: tuple[Credential, ...] | None = None
        first = self._opened_by(target, ids)
        if first in shared_ids(self._sources.operator_id):
            outcome = await ask(self._question(target, keyring.tenant, tried := (), first))
        for refresh in (False, True):
            if outcome is DENIED or (isinstance(outcome, Failure) and depends_on_credential(outcome)):
                logins = await keyring.load(target.reference, refresh=refresh)
                if logins != tried:
                    outcome = await ask(self._question(target, keyring.tenant, tried := logins, first))
        if isinstance(outcome, Failure) and depends_on_credential(outcome) and keyring.is_unread():
            return UNREAD
        return outcome

    def _question(self, target: Target, tenant: str, logins: tuple[Credential, ...], first: CredentialId) -> Question:
        """The question with these logins of the pod's, then the operator's credentials, then none."""
        ids = (*(login.id for login in logins), *shared_ids(self._sources.operator_id))
        return Question(target, tenant, PullAccess(logins, first), ids)

    def _opened_by(self, target: Target, ids: Iterable[CredentialId]) -> CredentialId:
        """The first of the credentials that has opened the image before; empty if none has."""
        return next((each for each in ids if self._cache.find(target, each)), NO_OPERATOR)

    async def _recall(self, query: ImageQuery, target: Target, ids: Sequence[CredentialId]) -> CachedImage | None:
        """What the cache has as fresh for these credentials, after reading the store's rows for them."""
        if self._persistence:
            for key, known in await self._persistence.find(target, ids):
                self._cache.load(key, known)
        for credential_id in ids:
            found = self._cache.find(target, credential_id)
            if found and self._cache.is_fresh(found, query, target, credential_id, self._clock()):
                return found
        return None

    async def _take_turn(self, question: Question) -> CachedImage | Failure:
        """Waits for a turn, and asks unless another lookup has answered meanwhile."""
        started, target = self._clock(), question.target
        async with self._turns.turn(question.tenant, target.reference.domain):
            for credential_id in question.ids:
                known = self._cache.find(target, credential_id)
                if known and known.confirmed_at >= started:
                    return known
            return await self._ask(question)

    async def _ask_once(self, question: Question) -> CachedImage | Failure:
        """The outcome of one question, which all share that have a turn for it: `alru_cache` wraps this method.

        Several keyrings may hold the same logins, and most have none. The failure is recorded here, and so counts once.
        The bytes of what the name was known to mean need not be read again, if this repository has shown them.
        """
        target, ids = question.target, question.ids
        if failure := self._failures.get(target, ids):
            return failure
        at = self._clock()
        answer = await self._look(question, self._cache.known_digests(target, ids))
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

    def _learn(self, question: Question, answer: SeenImage | Failed, at: float) -> CachedImage | Failure | None:
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
        return known

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
    return question.target.repository, question.target.name, question.ids
