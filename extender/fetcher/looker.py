"""Looks at images: with one credential after another, by a HEAD and the GET that it makes necessary.

This file has the order of credentials and requests, in the process that asks registries. Everything that may hang is in
bounds: the registry has the question's seconds, and providers of credentials those of the operator's keyring.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.credentials.operator_keyring import OperatorKeyring
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryRefusedImage,
    UnsupportedManifest,
)
from extender.fetcher.messages import Failed, Look, SeenImage, Verify, failed_of
from extender.images.content import Cause, Failure
from extender.images.failures import UNREAD, depends_on_credential, failure_of, summary
from extender.images.manifest import Image
from extender.images.reference import ImageReference
from extender.tables import LruTable, declare_cache

T = TypeVar("T")

# What HEADs state besides the digests that the service knows: other tags of the same image, other namespaces' pods.
_DESCRIBED = declare_cache("fetcher.looker.described", key="repository, digest", rows=256, most_mb=10)
_UNREAD_SECONDS = 10.0  # until a provider that failed is asked again
_MAY_CHANGE_SECONDS = 30.0  # in which a provider may give another credential than one that was denied
_MOST_CREDENTIAL = 32 << 10  # characters; no server takes a header that long


class ImageSource(Protocol):
    """Asks registries with one credential. Each method ends within `seconds`. A description costs the tenant quota.

    Raises nothing but subclasses of RegistryError, InvalidManifest and UnsupportedManifest.
    """

    async def state_digest(self, reference: ImageReference, credential: Credential, *, seconds: float) -> str | None:
        """Returns the digest that the registry states for the reference, unverified; None if it states none."""
        ...

    async def describe(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> Image:
        """Returns the image's description, by digest if the reference has one, else by tag.

        It is read from bytes that hash to its digest, and has 64 platforms and 65 skipped parts at most.
        """
        ...


class _Attempt(NamedTuple):
    """A credential to try, and the id and words that stand for it outside of this process."""

    credential: Credential
    by: CredentialId
    label: str = ""


class Looker:
    """Answers questions about images."""

    def __init__(self, images: ImageSource, operator: OperatorKeyring) -> None:
        self._images = images
        self._operator = operator
        self._described: LruTable[tuple[str, str], Image] = LruTable(_DESCRIBED.bound())

    async def look(self, look: Look) -> SeenImage | Failed:
        """Returns what the image is for the first credential that opens it, or why none does.

        A credential is tried after another one as the kubelet does: not where the registry fails.
        """
        failures: list[tuple[_Attempt, Failure]] = []
        left, loop = look.seconds, asyncio.get_running_loop()
        async with contextlib.aclosing(self._attempts(look)) as attempts:
            async for attempt in attempts:
                began_at = loop.time()
                try:
                    digest, image = await self._see(look, attempt.credential, began_at + left)
                except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
                    failure = failure_of(exc)
                    if not depends_on_credential(failure):
                        return failed_of(exc, by=attempt.by, denied=self._denied(look, failures, but=attempt.by))
                    failures.append((attempt, failure))
                    left -= loop.time() - began_at
                    continue
                if attempt.label:
                    self._operator.note_opened(look.kubelet_name, attempt.credential)
                denied = self._denied(look, failures, but=attempt.by)
                return SeenImage(by=attempt.by, digest=digest, image=image, label=attempt.label, denied=denied)
        return self._failed(look, failures)

    async def ask(self, question: Look | Verify, ask: Callable[[Credential], Awaitable[T]]) -> T:
        """Returns the result of `ask` for the first credential that is not denied.

        Raises:
            RegistryDenied: all are.
        """
        async with contextlib.aclosing(self._attempts(question)) as attempts:
            async for attempt in attempts:
                with contextlib.suppress(RegistryDenied):
                    return await ask(attempt.credential)
        raise RegistryDenied(f"no credential opens {question.reference}")

    async def _attempts(self, question: Look | Verify) -> AsyncGenerator[_Attempt, None]:
        """Yields each credential once: what opened the image before, the pod's, the operator's, and none.

        If all of these fail, the operator's files are read again, and what has changed follows.
        """
        first = question.access.first
        steps = [self._own, self._operators, self._nobody]
        if first == ANONYMOUS.id:
            steps = [self._nobody, self._own, self._operators]
        elif first == self._operator.id:
            steps = [self._operators, self._own, self._nobody]
        yielded = set[tuple[str, str]]()
        for step in (*steps, self._changed):
            async with contextlib.aclosing(step(question)) as attempts:
                async for attempt in attempts:
                    login = (attempt.credential.username, attempt.credential.password)
                    if login not in yielded and sum(map(len, login)) <= _MOST_CREDENTIAL:
                        yielded.add(login)
                        yield attempt

    async def _own(self, question: Look | Verify) -> AsyncGenerator[_Attempt, None]:
        for login in sorted(question.access.logins, key=lambda login: login.id != question.access.first):
            yield _Attempt(login, login.id)

    async def _operators(self, question: Look | Verify) -> AsyncGenerator[_Attempt, None]:
        async with contextlib.aclosing(self._operator.credentials(question.kubelet_name, question.tenant)) as found:
            async for credential, label in found:
                yield _Attempt(credential, self._operator.id, label)

    async def _nobody(self, _question: Look | Verify) -> AsyncGenerator[_Attempt, None]:
        yield _Attempt(ANONYMOUS, ANONYMOUS.id)

    async def _changed(self, question: Look | Verify) -> AsyncGenerator[_Attempt, None]:
        if await self._operator.refresh():
            async with contextlib.aclosing(self._operators(question)) as attempts:
                async for attempt in attempts:
                    yield attempt

    async def _see(self, look: Look, credential: Credential, ends: float) -> tuple[str, Image | None]:
        """Returns the image's digest and description as the credential sees them, by a HEAD, a GET, or both.

        The HEAD is free where GETs are counted (Docker Hub), and proves this credential's access to content that
        another one has fetched from the same repository.
        """
        reference = look.reference
        stated = await self._state(look, credential, ends) if look.by_head else None
        if stated is None:
            image = await self._describe(look, reference, credential, ends)
        elif stated in look.known:
            return stated, None
        elif known := self._described.get((reference.repository, stated)):
            return stated, known
        else:
            try:
                image = await self._describe(look, reference.pinned_to(stated), credential, ends)
            except (ManifestNotFound, InvalidManifest):
                # The tag has just moved, or the header is wrong (some registries do that): the bytes behind it decide.
                if reference.digest:
                    raise
                image = await self._describe(look, reference, credential, ends)
        self._described.put((reference.repository, image.digest), image)
        return image.digest, image

    async def _state(self, look: Look, credential: Credential, ends: float) -> str | None:
        try:
            return await self._images.state_digest(look.reference, credential, seconds=_until(ends))
        except (ManifestNotFound, RegistryDenied, RegistryRefusedImage, RegistryFailed):
            return None  # some registries answer so to a HEAD, and have it

    async def _describe(self, look: Look, reference: ImageReference, credential: Credential, ends: float) -> Image:
        return await self._images.describe(reference, credential, tenant=look.tenant, seconds=_until(ends))

    def _failed(self, look: Look, failures: list[tuple[_Attempt, Failure]]) -> Failed:
        """Returns why no credential opens the image. That all at hand are denied tells nothing if others are unread."""
        denied = self._denied(look, failures)
        if self._operator.is_unread(look.kubelet_name):
            return Failed(failure=UNREAD, retry_after=_UNREAD_SECONDS, denied=denied, why=UNREAD.detail)
        failure = summary(failure for _, failure in failures)
        is_short = failure.cause is Cause.DENIED and self._operator.may_change(look.kubelet_name)
        return Failed(
            failure=failure, retry_after=_MAY_CHANGE_SECONDS if is_short else None, denied=denied, why=failure.detail
        )

    def _denied(
        self, look: Look, failures: list[tuple[_Attempt, Failure]], but: CredentialId | None = None
    ) -> tuple[CredentialId, ...]:
        """Returns the ids that were denied but one; that of the operator's credentials if all of them were."""
        denied: dict[CredentialId, bool] = {}
        for attempt, failure in failures:
            denied[attempt.by] = denied.get(attempt.by, True) and failure.cause is Cause.DENIED
        if self._operator.is_unread(look.kubelet_name):
            denied.pop(self._operator.id, None)
        return tuple(each for each, is_denied in denied.items() if is_denied and each != but)


def _until(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())
