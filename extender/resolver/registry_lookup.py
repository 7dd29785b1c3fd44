"""One lookup: from a reference and credentials to the image's content, in as few registry requests as possible.

This file has the order of the requests and what each of them proves. `resolver.py` decides when a lookup starts and
how long callers wait for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog
from async_lru import alru_cache

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import InvalidManifest, ManifestNotFound, RegistryDenied, RegistryError, UnsupportedManifest
from extender.images.content import Content, Failure
from extender.images.digest import pack_digest
from extender.images.manifest import Image
from extender.images.reference import ImageReference
from extender.registry.image import FetchedManifest, ManifestClient, describe_image
from extender.resolver.failures import DENIED, ENDED, NEXT_CREDENTIAL, Failures, summary
from extender.resolver.image_cache import CachedImage, ImageCache
from extender.resolver.persistence import Persistence
from extender.resolver.references import Target
from extender.resolver.registry_hosts import BreakerOpen, RegistryHosts
from extender.tables import declare_cache
from extender.turns import Interest, TurnLost, current_interest

T = TypeVar("T", CachedImage, Image)

log = structlog.get_logger()

# Fetches kept, four times as many as can be in flight. The oldest is dropped whether or not it has ended: one that is
# still in flight after 1,024 later ones may be repeated, but it completes.
_FETCHES = declare_cache(
    "resolver.registry_lookup.fetches",
    key="repository, digest, credential id",
    bound=1024,
    at_most="8 MB",
    invalidated_by="the end of its lookup, if large",
)
# Platforms and skipped parts of an image that stays after the lookup that fetched it. A part takes 800 bytes at most
# (a sha512 digest, three words of 32 characters or a reason of 150), so 1,024 images take less than 8 MB. A larger
# image takes up to 100 KB and is dropped with its lookup. Its content stays in the image cache; only a later
# `describe` fetches it again.
_MOST_KEPT_PARTS = 8


class _Try(NamedTuple):
    """A request in flight, for a `CachedImage` or an `Image` as its key says, and who wants it."""

    task: "asyncio.Task[Any]"
    interest: Interest


class RegistryLookup:
    """Looks images up in registries; writes what it learns into the cache, and errors into the failures."""

    def __init__(
        self,
        client: ManifestClient,
        cache: ImageCache,
        persistence: Persistence,
        failures: Failures,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        head_first: bool = True,
    ) -> None:
        self._client = client
        self._head_first = head_first
        self._cache = cache
        self._persistence = persistence
        self._failures = failures
        self._clock = clock
        self._random = random
        self._hosts = RegistryHosts(clock, random)
        self._trying: dict[Hashable, _Try] = {}
        self._fetch = alru_cache(maxsize=_FETCHES.rows, key=_fetch_key)(self._fetch_image)
        self._large: set[Hashable] = set()  # the keys of large images whose lookups have not ended

    def host_failure(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """Why a breaker refuses lookups of the target with this credential now; None if they are admitted."""
        return self._hosts.failure(target, credential_id)

    async def find(self, target: Target, credentials: tuple[Credential, ...]) -> CachedImage | Failure:
        """The target's digest and content, with the first credential that works. Every error becomes a `Failure`."""
        return await self._look_up(target, credentials, self._ask)

    async def describe(self, target: Target, credentials: tuple[Credential, ...]) -> Image | Failure:
        """As `find`, with all details of the image; fetches them again where the cache has only the content."""
        return await self._look_up(target, credentials, self._ask_details)

    def forget_failure(self, target: Target, before: Sequence[Credential], after: Sequence[Credential]) -> None:
        """Removes failures of credentials whose password has changed under the same id."""
        credential_ids = {credential.id for credential in before}
        for credential in after:
            if credential.id in credential_ids and credential not in before:
                self._failures.forget(target, credential.id)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that no fetch can start."""
        return bool(self._fetch.cache_parameters()["closed"])

    async def close(self) -> None:
        """Ends all fetches and prevents new ones."""
        await self._fetch.cache_close()

    async def _look_up(
        self, target: Target, credentials: tuple[Credential, ...], ask: Callable[[Target, Credential], Awaitable[T]]
    ) -> T | Failure:
        """Tries the credentials in order, but first those for which the cache has the target: they most likely work."""
        failures = []
        for credential in sorted(credentials, key=lambda item: not self._is_known(target, item)):
            outcome = await self._share(target, credential, ask)
            if not isinstance(outcome, Failure) or outcome.cause not in NEXT_CREDENTIAL:
                return outcome
            failures.append(outcome)
        return summary(failures) or DENIED

    def _is_known(self, target: Target, credential: Credential) -> bool:
        return self._cache.find(target, credential.id) is not None

    async def _share(
        self, target: Target, credential: Credential, ask: Callable[[Target, Credential], Awaitable[T]]
    ) -> T | Failure:
        """Waits for the one try in flight per target and credential, or starts it.

        Several keyrings may hold the same credential: every keyring holds `ANONYMOUS`. Callers are tasks of a
        `SingleFlight`, which only `close` cancels, and then all of them. The try therefore needs no `asyncio.shield`.
        """
        key = (target.repository, target.name, credential.id, ask)
        trying = self._trying.get(key)
        if trying is None:
            task = asyncio.create_task(self._try(target, credential, ask))
            trying = self._trying[key] = _Try(task, current_interest())
            task.add_done_callback(lambda _: self._trying.pop(key, None))
        else:
            trying.interest.join(current_interest())
        outcome: T | Failure = await trying.task
        return outcome

    async def _try(
        self, target: Target, credential: Credential, ask: Callable[[Target, Credential], Awaitable[T]]
    ) -> T | Failure:
        current = self._failures.current(target, credential.id)
        if current:
            return current
        try:
            async with self._hosts.visit(target, credential.id):
                outcome = await ask(target, credential)
        except BreakerOpen as exc:
            return exc.failure
        except TurnLost:
            return ENDED
        except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
            return self._fail(target, credential, exc)
        except Exception as exc:  # noqa: BLE001 - an unexpected error must become a Failure too
            return self._crash(target, credential, exc)
        self._failures.forget(target, credential.id)
        self._drop_large(target.reference.with_digest(outcome.digest), credential)
        return outcome

    def _fail(self, target: Target, credential: Credential, error: Exception) -> Failure:
        if isinstance(error, RegistryDenied):
            self._cache.revoke(target, credential.id, self._clock())
        failure = self._failures.remember(target, credential.id, error, current_interest().first)
        log.info("lookup.failed", image=str(target.reference), cause=failure.cause.value, credential_id=credential.id)
        return failure

    def _crash(self, target: Target, credential: Credential, error: Exception) -> Failure:
        """Logs a defect of ours with an id; the pod's author is shown that the registry is unavailable."""
        crash = f"{int(self._random() * 2**32):08x}"
        log.error("lookup.crashed", id=crash, image=str(target.reference), exc_info=error)
        return self._failures.remember(target, credential.id, error, current_interest().first)

    async def _ask(self, target: Target, credential: Credential) -> CachedImage:
        """The target's digest and content as this credential sees them, by a HEAD, a GET, or both.

        A digest whose content is not known is fetched without a HEAD. Otherwise the HEAD comes first: it is free where
        GETs are counted (Docker Hub), and it proves this credential's access to content that another one fetched.
        Unless `head_first`, a name that was never known takes one GET, in half the time.
        """
        reference = target.reference
        await self._recall_content(target.repository, reference.digest)
        if reference.digest and not self._is_remembered(target, credential):
            return await self._confirm(target, credential, reference.digest, None)
        if not self._head_first and not self._is_known(target, credential):
            manifest = await self._client.fetch_manifest(reference, credential)
            return await self._confirm(target, credential, manifest.digest, manifest)
        stated = await self._client.head_manifest(reference, credential)
        if stated is None:
            manifest = await self._client.fetch_manifest(reference, credential)
            return await self._confirm(target, credential, manifest.digest, manifest)
        await self._recall_content(target.repository, stated)
        try:
            return await self._confirm(target, credential, stated, None)
        except (ManifestNotFound, InvalidManifest):
            # The tag has just moved, or the header is wrong (some registries do that): the bytes behind the tag decide.
            manifest = await self._client.fetch_manifest(reference, credential)
            if manifest.digest == stated:
                raise
            return await self._confirm(target, credential, manifest.digest, manifest)

    async def _recall_content(self, repository: str, digest: str) -> None:
        """Loads the digest's content from the store, which saves the GET but proves no credential's access."""
        if digest and self._cache.shown(repository, digest) is None:
            content = await self._persistence.find_content(repository, digest)
            if content:
                self._cache.load_content(repository, pack_digest(digest), content)

    async def _ask_details(self, target: Target, credential: Credential) -> Image:
        known = await self._ask(target, credential)
        return await self._fetch(target.reference.with_digest(known.digest), credential, None)

    def _is_remembered(self, target: Target, credential: Credential) -> bool:
        """Whether `_confirm` could answer for the target's digest without a request, which would prove no access."""
        reference = target.reference
        return self._cache.shown(target.repository, reference.digest) is not None or self._fetch.cache_contains(
            reference, credential, None
        )

    async def _confirm(
        self, target: Target, credential: Credential, digest: str, manifest: FetchedManifest | None
    ) -> CachedImage:
        """Records that the target is `digest` for this credential; fetches it if its content is not known yet."""
        owner = current_interest().first
        known = self._cache.confirm(target, credential.id, digest, self._clock(), owner)
        if known is None:
            image = await self._fetch(target.reference.with_digest(digest), credential, manifest)
            known = self._cache.learn(target, credential.id, digest, _content_of(image), self._clock(), owner)
        return known

    async def _fetch_image(
        self, reference: ImageReference, credential: Credential, manifest: FetchedManifest | None
    ) -> Image:
        """Everything about the reference's digest; `manifest` saves the GET where it was already fetched.

        `alru_cache` wraps this method: concurrent callers share one fetch, and the last images are kept. Errors are
        raised and therefore not kept. Cancelling the last caller cancels the fetch. Callers are therefore lookups in
        tasks of their own, which a request's deadline does not cancel.

        The key is (repository, digest, credential id). Bytes from one repository prove nothing about another, and one
        credential must not get what another was given. `manifest` is not part of the key.
        """
        if manifest is None:
            manifest = await self._client.fetch_manifest(reference, credential)
        image = await describe_image(self._client, reference, manifest, credential)
        if len(image.entries) + len(image.skipped) > _MOST_KEPT_PARTS:
            self._large.add(_fetch_key(reference, credential, manifest))
        return image

    def _drop_large(self, reference: ImageReference, credential: Credential) -> None:
        """Removes the reference's image from the kept fetches if it is large."""
        key = _fetch_key(reference, credential, None)
        if key in self._large:
            self._large.remove(key)
            self._fetch.cache_invalidate(reference, credential, None)


def _fetch_key(reference: ImageReference, credential: Credential, manifest: FetchedManifest | None) -> Hashable:  # noqa: ARG001
    return reference.repository, reference.digest, credential.id


def _content_of(image: Image) -> Content:
    return Content(image.kind, frozenset(entry.platform for entry in image.entries), image.states_platforms)
