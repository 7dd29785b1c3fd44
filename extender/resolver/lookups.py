"""One lookup: in memory and the store for the credentials of a keyring, then one question to the registry.

What the answer teaches is recorded here: content, denials and failures. In the process that asks, `fetcher.looker` has
the order of credentials and requests.
"""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Protocol, TypeVar

import structlog
from async_lru import alru_cache
from prometheus_client import Gauge

from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId, Keyring
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
        self._ask = alru_cache(maxsize=None, ttl=0, key=_key_of_question)(self._ask_once)
        THROTTLED.set_function(lambda: max(0.0, self._throttled_until - self._clock()))

    async def find(self, query: ImageQuery, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What memory or the store has as fresh for the keyring's credentials; else what the registry gives.

        Reads no secret if the ids known so far suffice.
        """
        read = set[CredentialId]()  # of which the store has been asked

        async def ask(access: PullAccess) -> CachedImage | Failure:
            known = await self._recall(query, target, keyring, read)
            return known or await self._take_turn(target, keyring.tenant, access)

        return await self._recall(query, target, keyring, read) or await self._try(ask, target, keyring)

    async def confirm(self, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the registry gives, whatever memory and the store have."""
        return await self._try(partial(self._take_turn, target, keyring.tenant), target, keyring)

    async def describe(self, target: Target, keyring: Keyring) -> Image | Failure:
        """As `confirm`, with all details of the image, which are asked for each time."""

        async def ask(access: PullAccess) -> Image | Failure:
            async with self._turns.turn(keyring.tenant, target.reference.domain):
                if failure := self._failures.get(target, self._ids_of(access)):
                    return failure
                at = self._clock()
                answer = await self._look(target, access, keyring.tenant)
                learned = self._learn(target, access, answer, at, keyring.tenant)
                if isinstance(learned, Failure):
                    return learned
                assert isinstance(answer, SeenImage)  # noqa: S101 - else there is a failure
                assert answer.image  # noqa: S101 - no digest was given as known
                return answer.image

        return await self._try(ask, target, keyring)

    async def access_of(self, target: Target, keyring: Keyring) -> PullAccess:
        """What the keyring has for the image: for other questions than what it is."""
        return PullAccess(await keyring.load(target.reference), self._opened_by(target, keyring) or NO_OPERATOR)

    async def _try(
        self, ask: Callable[[PullAccess], Awaitable[T | Failure]], target: Target, keyring: Keyring
    ) -> T | Failure:
        """The outcome of `ask`: without the pod's secrets where that has worked; with them; with those read anew.

        Each follows if the one before was a failure that depends on the credential. That all at hand are denied tells
        nothing if others could not be read; who describes an image hears so from here alone.
        """
        outcome: T | Failure = DENIED
        tried: tuple[Credential, ...] | None = None
        opened_by = self._opened_by(target, keyring)
        if opened_by in (ANONYMOUS.id, keyring.operator_id):
            outcome = await ask(PullAccess(tried := (), opened_by or NO_OPERATOR))
        for refresh in (False, True):
            if outcome is DENIED or (isinstance(outcome, Failure) and depends_on_credential(outcome)):
                logins = await keyring.load(target.reference, refresh=refresh)
                if logins != tried:
                    outcome = await ask(PullAccess(tried := logins, opened_by or NO_OPERATOR))
        if isinstance(outcome, Failure) and depends_on_credential(outcome) and keyring.is_unread():
            return UNREAD
        return outcome

    def _opened_by(self, target: Target, keyring: Keyring) -> CredentialId | None:
        """The first of the keyring's credentials that has opened the image before."""
        credential_ids = keyring.credential_ids_for(target.reference)
        return next((each for each in credential_ids if self._cache.find(target, each)), None)

    async def _recall(
        self, query: ImageQuery, target: Target, keyring: Keyring, read: set[CredentialId]
    ) -> CachedImage | None:
        """What the cache has as fresh for the keyring's credentials, after reading the store's rows for further ones.

        `read` are those of which rows have been read.
        """
        credential_ids = keyring.credential_ids_for(target.reference)
        unread = [each for each in credential_ids if each not in read]
        read.update(unread)
        if self._persistence:
            for key, known in await self._persistence.find(target, unread):
                self._cache.load(key, known)
        for credential_id in credential_ids if unread else ():
            found = self._cache.find(target, credential_id)
            if found and self._cache.is_fresh(found, query, target, credential_id, self._clock()):
                return found
        return None

    async def _take_turn(self, target: Target, tenant: str, access: PullAccess) -> CachedImage | Failure:
        """Waits for a turn, and asks unless another lookup has answered meanwhile."""
        started = self._clock()
        async with self._turns.turn(tenant, target.reference.domain):
            for credential_id in self._ids_of(access):
                known = self._cache.find(target, credential_id)
                if known and known.confirmed_at >= started:
                    return known
            return await self._ask(target, access, tenant)

    async def _ask_once(self, target: Target, access: PullAccess, tenant: str) -> CachedImage | Failure:
        """The outcome of one question, which all share that have a turn for it: `alru_cache` wraps this method.

        Several keyrings may hold the same logins, and most have none. The failure is recorded here, and so counts once.
        The bytes of what the name was known to mean need not be read again, if this repository has shown them.
        """
        credential_ids = self._ids_of(access)
        if failure := self._failures.get(target, credential_ids):
            return failure
        at = self._clock()
        answer = await self._look(target, access, tenant, self._cache.known_digests(target, credential_ids))
        learned = self._learn(target, access, answer, at, tenant)
        if learned is None:  # the content of the digest has been evicted meanwhile
            answer = await self._look(target, access, tenant)
            learned = self._learn(target, access, answer, at, tenant)
        assert learned  # noqa: S101 - no digest was given as known
        return learned

    async def _look(
        self, target: Target, access: PullAccess, tenant: str, known: tuple[str, ...] = ()
    ) -> SeenImage | Failed:
        """The answer to one question. What was denied meanwhile opens nothing any more."""
        look = Look(
            tenant=tenant,
            reference=target.asked,
            kubelet_name=target.reference,
            access=access,
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

    def _learn(
        self, target: Target, access: PullAccess, answer: SeenImage | Failed, at: float, tenant: str
    ) -> CachedImage | Failure | None:
        """Records the answer to a question that was asked `at`: what the target is for a credential, or why not.

        Returns None for a digest whose content is not known any more.
        """
        if isinstance(answer, Failed):
            return self._fail(target, access, answer, tenant)
        if answer.image:
            content = content_of(answer.image)
            known: CachedImage | None = self._cache.learn(
                target, answer.by, answer.digest, content, at, tenant, answer.label, is_partial=answer.image.is_partial
            )
        else:
            known = self._cache.confirm(target, answer.by, answer.digest, at, tenant, answer.label)
        if known is None:
            return None
        self._failures.remove(target, self._ids_of(access))
        return known

    def _fail(self, target: Target, access: PullAccess, failed: Failed, tenant: str) -> Failure:
        failure = failed.failure
        self._failures.put(target, self._ids_of(access), failure, failed.retry_after, tenant)
        is_shared = failed.by == ANONYMOUS.id and target.reference.domain == HUB  # by the nodes' address
        is_shared = is_shared or (failed.by == self._sources.operator_id and bool(failed.by))
        if failure.cause is Cause.THROTTLED and failed.retry_after and is_shared:
            self._throttled_until = self._clock() + failed.retry_after
        log.info("lookup.failed", image=str(target.reference), cause=failure.cause.value, credential_id=failed.by)
        return failure

    def _ids_of(self, access: PullAccess) -> tuple[CredentialId, ...]:
        """The ids of all that is tried: as `Keyring.credential_ids_for` has them."""
        operator = self._sources.operator_id
        shared = (operator, ANONYMOUS.id) if operator else (ANONYMOUS.id,)
        return (*(login.id for login in access.logins), *shared)


def _key_of_question(target: Target, access: PullAccess, tenant: str) -> Hashable:  # noqa: ARG001 - it is one for all
    return target.repository, target.name, tuple(login.id for login in access.logins)
