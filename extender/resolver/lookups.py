"""One lookup: in memory and the store for the credentials of a keyring, then one question to the registry.

What the answer teaches is recorded here: content, denials and failures. In the process that asks, `fetcher.looker` has
the order of credentials and requests.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

import structlog
from async_lru import alru_cache
from prometheus_client import Gauge

from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId, Keyring
from extender.errors import RegistryUnavailable
from extender.fetcher.messages import Failed, Look, PullAccess, SeenImage, failed_of
from extender.images.content import Cause, Failure, content_of
from extender.images.failures import DENIED, UNREAD, depends_on_credential
from extender.images.manifest import Image
from extender.metrics import REGISTRY
from extender.resolver.asking import Confirmed, Sources, narrowed
from extender.resolver.child_checks import ChildChecks
from extender.resolver.failures import Failures
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery, Target
from extender.resolver.persistence import Persistence
from extender.turns import Turns

T = TypeVar("T", CachedImage, Image)

log = structlog.get_logger()

THROTTLED = Gauge(
    "multiarch_registry_throttled_seconds",
    "Seconds until requests with the operator's login, or to Docker Hub without one, are made again after a 429; 0: "
    "none wait.",
    registry=REGISTRY,
)


class Lookups:
    """Looks images up with keyrings; writes what it learns into the cache and the failures.

    A question waits for a turn of its tenant. Whoever has a turn and the same question as another shares it, so there
    are no more of them than turns. Every method raises NoTurn if no turn has come in time, at a registry or for reading
    secrets; all else becomes a `Failure`.
    """

    def __init__(  # noqa: PLR0913 - settings and parts, each by its name
        self,
        sources: Sources,
        cache: ImageCache,
        persistence: Persistence,
        failures: Failures,
        child_checks: ChildChecks,
        *,
        turns: Turns,
        clock: Callable[[], float],
        random: Callable[[], float],
        head_first: bool,
        lookup_seconds: float,
    ) -> None:
        """`lookup_seconds` is how long registries have for one lookup."""
        self._sources = sources
        self._cache = cache
        self._persistence = persistence
        self._failures = failures
        self._child_checks = child_checks
        self._turns = turns
        self._clock = clock
        self._random = random
        self._head_first = head_first
        self._lookup_seconds = lookup_seconds
        self._throttled_until = 0.0
        self.on_confirmed: Callable[[Confirmed], None] | None = None
        self._ask = alru_cache(maxsize=None, ttl=0, key=_key_of_question)(self._ask_once)
        THROTTLED.set_function(lambda: max(0.0, self._throttled_until - self._clock()))

    async def find(self, query: ImageQuery, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What memory or the store has as fresh for the keyring's credentials; else what the registry gives.

        Reads no secret if the ids known so far suffice.
        """
        recalled = set[CredentialId]()

        async def recall() -> CachedImage | None:
            credential_ids = keyring.credential_ids_for(target.reference)
            unread = [each for each in credential_ids if each not in recalled]
            recalled.update(unread)
            return await self._recall(query, target, credential_ids, unread) if unread else None

        async def ask(access: PullAccess) -> CachedImage | Failure:
            return await recall() or await self._take_turn(target, access, keyring.tenant)

        return await recall() or await self._try(ask, target, keyring)

    async def confirm(self, target: Target, keyring: Keyring) -> CachedImage | Failure:
        """What the registry gives, whatever memory and the store have."""

        async def ask(access: PullAccess) -> CachedImage | Failure:
            return await self._take_turn(target, access, keyring.tenant)

        return await self._try(ask, target, keyring)

    async def describe(self, target: Target, keyring: Keyring) -> Image | Failure:
        """As `confirm`, with all details of the image, which are asked for each time."""

        async def ask(access: PullAccess) -> Image | Failure:
            if failure := self._failures.get(target, self._ids_of(access)):
                return failure
            async with self._turns.turn(keyring.tenant, target.reference.domain):
                at = self._clock()
                answer = await self._look(target, access, keyring.tenant, by_head=False)
                if isinstance(answer, Failed):
                    return self._fail(target, access, answer, keyring.tenant)
                assert answer.image  # noqa: S101 - no digest was given as known
                self._learn(target, access, answer, answer.image, at, keyring.tenant)
                return answer.image

        return await self._try(ask, target, keyring)

    async def access_of(self, target: Target, keyring: Keyring) -> PullAccess:
        """What the keyring has for the image: for other questions than what it is."""
        return PullAccess(await keyring.load(target.reference), self._opened_by(target, keyring) or NO_OPERATOR)

    async def _try(
        self, ask: Callable[[PullAccess], Awaitable[T | Failure]], target: Target, keyring: Keyring
    ) -> T | Failure:
        """The outcome of `ask`, and of another one if it depends on the credential and there are others by now.

        That all at hand are denied tells nothing if others could not be read.
        """
        failure = DENIED
        async with contextlib.aclosing(self._accesses(target, keyring)) as accesses:
            async for access in accesses:
                outcome = await ask(access)
                if not isinstance(outcome, Failure) or not depends_on_credential(outcome):
                    return outcome
                failure = outcome
        return UNREAD if keyring.is_unread() else failure

    async def _accesses(self, target: Target, keyring: Keyring) -> AsyncGenerator[PullAccess, None]:
        """Yields what to ask with: without secrets where that has worked; with the pod's; with those read anew."""
        opened_by = self._opened_by(target, keyring)
        tried: tuple[Credential, ...] | None = None
        if opened_by in (ANONYMOUS.id, keyring.operator_id):
            yield PullAccess(tried := (), opened_by or NO_OPERATOR)
        for refresh in (False, True):
            logins = await keyring.load(target.reference, refresh=refresh)
            if logins != tried:
                yield PullAccess(tried := logins, opened_by or NO_OPERATOR)

    def _opened_by(self, target: Target, keyring: Keyring) -> CredentialId | None:
        """The first of the keyring's credentials that has opened the image before."""
        credential_ids = keyring.credential_ids_for(target.reference)
        return next((each for each in credential_ids if self._cache.find(target, each)), None)

    async def _recall(
        self, query: ImageQuery, target: Target, credential_ids: Sequence[CredentialId], unread: Sequence[CredentialId]
    ) -> CachedImage | None:
        """What the cache has as fresh for these credentials, after reading the store's rows for those `unread`."""
        for key, known in await self._persistence.find(target, unread):
            self._cache.load(key, known)
        for credential_id in credential_ids:
            found = self._cache.find(target, credential_id)
            if found and self._cache.is_fresh(found, query, target, credential_id, self._clock()):
                return found
        return None

    async def _take_turn(self, target: Target, access: PullAccess, tenant: str) -> CachedImage | Failure:
        """Waits for a turn, and asks unless another lookup has answered meanwhile."""
        started, credential_ids = self._clock(), self._ids_of(access)
        failure = self._failures.get(target, credential_ids)
        if failure:
            return failure
        async with self._turns.turn(tenant, target.reference.domain):
            for credential_id in credential_ids:
                known = self._cache.find(target, credential_id)
                if known and known.confirmed_at >= started:
                    return known
            return await self._ask(target, access, tenant)

    async def _ask_once(self, target: Target, access: PullAccess, tenant: str) -> CachedImage | Failure:
        """The outcome of one question, which all share that have a turn for it: `alru_cache` wraps this method.

        Several keyrings may hold the same logins, and most have none. The failure is recorded here, and so counts once.
        """
        credential_ids = self._ids_of(access)
        if failure := self._failures.get(target, credential_ids):
            return failure
        at, known = self._clock(), self._known_digests(target, credential_ids)
        is_known = bool(known) or any(self._cache.find(target, each) for each in credential_ids)
        by_head = (is_known or self._head_first) and target.reference.digest in ("", *known)
        answer = await self._look(target, access, tenant, known=known, by_head=by_head)
        if isinstance(answer, SeenImage) and answer.image is None:
            confirmed = self._cache.confirm(target, answer.by, answer.digest, at, tenant, answer.label)
            if confirmed:
                return self._note_confirmed(target, access, answer, confirmed, tenant)
            answer = await self._look(target, access, tenant, by_head=False)  # its content has been evicted meanwhile
        if isinstance(answer, Failed):
            return self._fail(target, access, answer, tenant)
        assert answer.image  # noqa: S101 - the digest is none of those that are known
        return self._learn(target, access, answer, answer.image, at, tenant)

    async def _look(
        self, target: Target, access: PullAccess, tenant: str, *, known: tuple[str, ...] = (), by_head: bool
    ) -> SeenImage | Failed:
        """The answer to one question. What was denied meanwhile opens nothing any more."""
        look = Look(
            tenant=tenant,
            reference=target.asked,
            kubelet_name=target.reference,
            access=access,
            seconds=self._lookup_seconds,
            known=known,
            by_head=by_head,
        )
        try:
            answer = await self._sources.look(look)
        except Exception as exc:  # noqa: BLE001 - an unexpected error must become a Failure too
            self._log_crash(target, exc)
            return failed_of(RegistryUnavailable("asking for it failed"))
        for credential_id in answer.denied:
            self._cache.revoke(target, credential_id, self._clock())
        return answer

    def _log_crash(self, target: Target, error: Exception) -> None:
        """Logs a defect of ours with an id; the pod's author is shown that the registry is unavailable."""
        crash = f"{int(self._random() * 2**32):08x}"
        log.error("lookup.crashed", id=crash, image=str(target.reference), exc_info=error)

    def _known_digests(self, target: Target, credential_ids: Sequence[CredentialId]) -> tuple[str, ...]:
        """What the name was known to mean, if this repository has shown the content: that need not be read again."""
        if target.reference.digest:
            digests = {target.reference.digest}
        else:
            digests = {known.digest for each in credential_ids if (known := self._cache.find(target, each))}
        return tuple(digest for digest in digests if self._cache.shown(target.repository, digest))

    def _learn(
        self, target: Target, access: PullAccess, seen: SeenImage, image: Image, at: float, tenant: str
    ) -> CachedImage:
        """Records that the target is this image for this credential: as of the question, however long it took."""
        is_new = self._cache.shown(target.repository, image.digest) is None
        known = self._cache.learn(target, seen.by, image.digest, content_of(image), at, tenant, seen.label)
        if is_new:
            narrow = narrowed(access, seen.by)
            self._child_checks.note_image(Confirmed(target, image.digest, known.content, narrow, tenant), image)
        return self._note_confirmed(target, access, seen, known, tenant)

    def _note_confirmed(
        self, target: Target, access: PullAccess, seen: SeenImage, known: CachedImage, tenant: str
    ) -> CachedImage:
        self._failures.remove(target, self._ids_of(access))
        confirmed = Confirmed(target, known.digest, known.content, narrowed(access, seen.by), tenant)
        if seen.image is None:
            self._child_checks.note_confirmed(confirmed)
        if self.on_confirmed:
            self.on_confirmed(confirmed)
        return known

    def _fail(self, target: Target, access: PullAccess, failed: Failed, tenant: str) -> Failure:
        failure = failed.failure
        self._failures.put(target, self._ids_of(access), failure, failed.retry_after, tenant)
        is_shared = failed.by == ANONYMOUS.id and target.reference.domain == "docker.io"  # by the nodes' address
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
