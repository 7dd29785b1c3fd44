"""Looks at images: with one credential after another, by a GET, or by a HEAD where that may save it.

This file has the order of credentials and requests, in the process that asks registries. Everything that may hang is in
bounds: the registry has the question's seconds, and providers of credentials those of the operator's keyring.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.credentials.operator_keyring import OperatorKeyring
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsupportedManifest,
)
from extender.fetcher.messages import Failed, Look, SeenImage, failed_of
from extender.images.content import Cause, Failure
from extender.images.failures import UNREAD, depends_on_credential, failure_of, summary
from extender.images.manifest import Image
from extender.registry.image_description import RegistryImages

T = TypeVar("T")

_UNREAD_SECONDS = 10.0  # until a provider that failed is asked again
_MAY_CHANGE_SECONDS = 30.0  # in which a provider may give another credential than one that was denied
_MOST_CREDENTIAL = 32 << 10  # characters; no server takes a header that long
# Some registries answer so to a HEAD, or not at all, and have the image.
_NOT_BY_HEAD = (ManifestNotFound, RegistryDenied, RegistryRefusedImage, RegistryUnavailable)
_UNCONNECTED = (RegistryUnreachable, RegistryNotAsked)
# Where credentials are from, besides the ids of the operator's and of none.
_POD, _CHANGED = "the pod's", "what has changed of the operator's"


class _Attempt(NamedTuple):
    """A credential to try, and the id and words that stand for it outside of this process."""

    credential: Credential
    by: CredentialId
    label: str = ""


class _FailedAttempt(NamedTuple):
    """What an attempt has failed with, where another credential may do better."""

    attempt: _Attempt
    failure: Failure
    error: Exception


class Looker:
    """Answers questions about images."""

    def __init__(self, registry: RegistryImages, operator: OperatorKeyring) -> None:
        self.registry = registry
        self._operator = operator

    @property
    def operator_id(self) -> CredentialId:
        """What stands for the operator's credentials; empty if there are none."""
        return self._operator.id

    async def look(self, look: Look) -> SeenImage | Failed:
        """Returns what the image is for the first credential that opens it, or why none does.

        A credential is tried after another one as the kubelet does: not where the registry fails. Registries have the
        question's seconds; who gives credentials has a time of its own.
        """
        refusals, silent = list[_FailedAttempt](), set[str]()
        left, loop = look.seconds, asyncio.get_running_loop()
        async with contextlib.aclosing(self._attempts(look, silent)) as attempts:
            async for attempt in attempts:
                began_at = loop.time()
                try:
                    async with asyncio.timeout(left):
                        digest, image = await self._see(look, attempt.credential)
                except (RegistryError, InvalidManifest, UnsupportedManifest, TimeoutError) as exc:
                    error = _late(look) if isinstance(exc, TimeoutError) else exc
                    failure = failure_of(error)
                    if not depends_on_credential(failure):
                        return failed_of(error, by=attempt.by, denied=self._denied(refusals, silent, but=attempt.by))
                    refusals.append(_FailedAttempt(attempt, failure, error))
                    left -= loop.time() - began_at
                    continue
                if attempt.label:
                    self._operator.note_opened(look.kubelet_name, attempt.credential)
                denied = self._denied(refusals, silent, but=attempt.by) if refusals else ()
                return SeenImage(by=attempt.by, digest=digest, image=image, label=attempt.label, denied=denied)
        return self._failed(look, refusals, silent)

    async def ask(self, look: Look, ask: Callable[[Credential], Awaitable[T]]) -> T:
        """Returns the result of `ask` for the first credential that opens the image, in the order of `look`.

        Raises what the one failed with that says most, if none does.
        """
        refusals: list[_FailedAttempt] = []
        async with contextlib.aclosing(self._attempts(look, set())) as attempts:
            async for attempt in attempts:
                try:
                    return await ask(attempt.credential)
                except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
                    failure = failure_of(exc)
                    if not depends_on_credential(failure):
                        raise
                    refusals.append(_FailedAttempt(attempt, failure, exc))
        worst = summary(each.failure for each in refusals)
        raise next(each.error for each in refusals if each.failure.cause is worst.cause)

    async def _attempts(self, look: Look, silent: set[str]) -> AsyncGenerator[_Attempt, None]:
        """Yields each credential once: what opened the image before, the pod's, the operator's, and none.

        If all of these fail, the operator's files are read again, and what has changed follows. `silent` gets those of
        the operator's sources that gave nothing when they were asked, for they failed or took too long.
        """
        first, operator = look.access.first, self._operator.id
        sources = [_POD, operator, ANONYMOUS.id] if operator else [_POD, ANONYMOUS.id]
        sources.sort(key=lambda source: source != first)
        yielded = set[tuple[str, str]]()
        for source in (*sources, _CHANGED) if operator else sources:
            async with contextlib.aclosing(self._attempts_of(source, look, silent)) as attempts:
                async for attempt in attempts:
                    login = (attempt.credential.username, attempt.credential.password)
                    if login not in yielded and sum(map(len, login)) <= _MOST_CREDENTIAL:
                        yielded.add(login)
                        yield attempt

    async def _attempts_of(self, source: str, look: Look, silent: set[str]) -> AsyncGenerator[_Attempt, None]:
        if source == ANONYMOUS.id:
            yield _Attempt(ANONYMOUS, ANONYMOUS.id)
        elif source == _POD:
            for login in sorted(look.access.logins, key=lambda login: login.id != look.access.first):
                yield _Attempt(login, login.id)
        elif source != _CHANGED or await self._operator.refresh():
            silent.clear()
            found = self._operator.credentials(look.kubelet_name, silent)
            async with contextlib.aclosing(found) as operators:
                async for credential, label in operators:
                    yield _Attempt(credential, self._operator.id, label)

    async def _see(self, look: Look, credential: Credential) -> tuple[str, Image | None]:
        """Returns the image's digest and description as the credential sees them, by a HEAD, a GET, or both.

        A HEAD comes first where its answer may do: it proves this credential's access to content that is known. What is
        new takes a GET whatever a HEAD says, unless nodes get digests from others than those that know tags.
        """
        reference, registry, stated = look.reference, self.registry, None
        if look.known or registry.resolves_elsewhere(reference):
            try:
                stated = await registry.head_manifest(reference, credential)
            except _NOT_BY_HEAD as exc:
                if isinstance(exc, _UNCONNECTED):
                    raise
        if stated in look.known:
            return stated, None
        try:
            image = await registry.describe(reference.pinned_to(stated) if stated else reference, credential)
        except (ManifestNotFound, InvalidManifest):
            # The tag has just moved, or the header is wrong (some registries do that): the bytes behind it decide.
            if reference.digest or not stated:
                raise
            image = await registry.describe(reference, credential)
        return image.digest, image

    def _failed(self, look: Look, refusals: Sequence[_FailedAttempt], silent: Collection[str]) -> Failed:
        """Returns why no credential opens the image. That all at hand are denied says nothing if others are unread."""
        denied = self._denied(refusals, silent)
        if silent:
            return Failed(failure=UNREAD, retry_after=_UNREAD_SECONDS, denied=denied, why=UNREAD.detail)
        failure = summary(each.failure for each in refusals)
        if failure.cause is Cause.THROTTLED:
            throttled = [each for each in refusals if each.failure.cause is Cause.THROTTLED]
            failed = [failed_of(each.error, by=each.attempt.by, denied=denied) for each in throttled]
            return min(failed, key=lambda each: each.retry_after or 0.0)
        is_short = failure.cause is Cause.DENIED and self._operator.may_change(look.kubelet_name)
        return Failed(
            failure=failure, retry_after=_MAY_CHANGE_SECONDS if is_short else None, denied=denied, why=failure.detail
        )

    def _denied(
        self, refusals: Sequence[_FailedAttempt], silent: Collection[str], but: CredentialId | None = None
    ) -> tuple[CredentialId, ...]:
        """Returns the ids that were denied but one; that of the operator's credentials if all of them were."""
        denied: dict[CredentialId, bool] = {}
        for attempt, failure, _ in refusals:
            denied[attempt.by] = denied.get(attempt.by, True) and failure.cause is Cause.DENIED
        if silent:
            denied.pop(self._operator.id, None)
        return tuple(each for each, is_denied in denied.items() if is_denied and each != but)


def _late(look: Look) -> RegistryUnavailable:
    host = look.reference.domain or look.reference.path
    return RegistryUnavailable(f"{host} did not answer within {look.seconds:.3g} s")
