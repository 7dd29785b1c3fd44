"""Tries the endpoints of a registry in order, and chooses which error to raise if none has the image.

Chooses the credentials that each endpoint receives. `client` sends the requests and interprets the responses.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import (
    AddressRefused,
    EndpointUnavailable,
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
)
from extender.images.reference import ImageReference
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Capability, Endpoint
from extender.registry.endpoint_breakers import REFUSALS, EndpointBreakers, Failure, has_answered

T = TypeVar("T")
Ask = Callable[[Endpoint, Credential], Awaitable[T]]
MirrorCredentials = Callable[[ImageReference], Awaitable[tuple[Credential, ...]]]
AnswerListener = Callable[[Endpoint, str], None]


async def nobody(_reference: ImageReference) -> tuple[Credential, ...]:
    """Returns the anonymous credential, for operators without credentials for mirrors."""
    return (ANONYMOUS,)


class MirrorFailover:
    """Tries one endpoint after the other until one has what is requested."""

    def __init__(
        self,
        endpoints_for: Callable[[ImageReference], Sequence[Endpoint]],
        *,
        mirror_credentials: MirrorCredentials,
        guard: AddressGuard | None,
        breakers: EndpointBreakers,
        on_answer: AnswerListener | None = None,
    ) -> None:
        """`endpoints_for` returns an image's endpoints in order. `on_answer` receives what each answered, in words.

        `mirror_credentials` and `guard` are those of `RegistryClient`.
        """
        self._endpoints_for = endpoints_for
        self._mirror_credentials = mirror_credentials
        self._guard = guard
        self._breakers = breakers
        self._on_answer = on_answer

    async def first_answer(
        self, capability: Capability, reference: ImageReference, credential: Credential, ask: Ask[T]
    ) -> T:
        """Returns the result of `ask` for the first endpoint that has what is requested.

        Goes on to the next endpoint if a mirror lacks it, fails, or has failed lately: it may hold only some images.
        Calls `ask` with an endpoint and a credential that this endpoint may receive.

        Raises:
            RegistryError, InvalidManifest: from `ask` or the guard; ManifestNotFound only if every endpoint lacks it.
            EndpointUnavailable: only some endpoints have answered, and none of them gives it.
        """
        endpoints = [each for each in self._endpoints_for(reference) if capability in each.capabilities]
        failures, blocked = list[Failure](), list[Failure]()  # nodes do not ask those that their files block
        for endpoint in endpoints:
            is_last_hope = endpoint is endpoints[-1] and not any(map(has_answered, failures))
            try:
                answer = await self._ask_endpoint(endpoint, reference, credential, ask, is_last_hope=is_last_hope)
            except (RegistryError, InvalidManifest) as exc:
                if self._on_answer:
                    self._on_answer(endpoint, str(exc))
                (blocked if endpoint.not_asked else failures).append(exc)
            else:
                if self._on_answer:
                    self._on_answer(endpoint, "it has the image")
                return answer
        raise _verdict(failures or blocked) if failures or blocked else _nowhere(reference, capability)

    async def _ask_endpoint(
        self, endpoint: Endpoint, reference: ImageReference, credential: Credential, ask: Ask[T], *, is_last_hope: bool
    ) -> T:
        """Returns the endpoint's result for the first credential that it neither denies nor throttles."""
        if endpoint.not_asked:
            raise AddressRefused(f"{endpoint.name} is not asked: {endpoint.not_asked}")
        if self._guard:
            self._guard.check_registry(endpoint.root)
        refusals: list[RegistryDenied | RegistryThrottled] = []
        images = endpoint.credentials == "image"
        for login in (credential,) if images else await self._credentials_for(endpoint, reference, credential):
            try:
                async with self._breakers.attempt(endpoint, login.id, is_last_hope=is_last_hope):
                    return await self._ask(endpoint, login, ask)
            except (RegistryDenied, RegistryThrottled) as exc:
                refusals.append(exc)
        raise next((each for each in refusals if isinstance(each, RegistryThrottled)), refusals[-1])

    async def _ask(self, endpoint: Endpoint, login: Credential, ask: Ask[T]) -> T:
        """Returns the result, over plain HTTP if the endpoint has that and no connection over TLS comes about."""
        try:
            return await ask(endpoint, login)
        except RegistryUnreachable:
            if endpoint.plain_root is None:
                raise
        if self._guard:
            self._guard.check_registry(endpoint.plain_root)
        return await ask(msgspec.structs.replace(endpoint, root=endpoint.plain_root, plain_root=None), login)

    async def _credentials_for(
        self, endpoint: Endpoint, reference: ImageReference, credential: Credential
    ) -> tuple[Credential, ...]:
        """Returns the credentials that a mirror may receive, in the order to show them."""
        there = ImageReference(endpoint.name, endpoint.own_repository, reference.tag, reference.digest)
        operators = await self._mirror_credentials(there)
        images = (credential,) if endpoint.credentials == "both" and credential not in operators else ()
        return (*images, *operators) or (ANONYMOUS,)


def _verdict(failures: Sequence[Failure]) -> Failure:
    """Returns the error for an image that no endpoint gives.

    That is the word of the last endpoint that the guard did not refuse, which is nearest the source. But an endpoint
    that fails may have what the others lack: while one does, the image is unavailable. It is missing only if every
    endpoint says so.
    """
    asked = [each for each in failures if not isinstance(each, AddressRefused)] or failures
    last, silent = asked[-1], [each for each in asked if not isinstance(each, REFUSALS)]
    if isinstance(last, RegistryThrottled):
        return last
    if silent and len(silent) < len(asked):
        return EndpointUnavailable(str(silent[-1]), getattr(silent[-1], "retry_after_seconds", None))
    others = [each for each in failures if not isinstance(each, ManifestNotFound)]
    if isinstance(last, ManifestNotFound) and others:
        denied = [each for each in others if isinstance(each, (RegistryDenied, RegistryRefusedImage))]
        return denied[-1] if denied else EndpointUnavailable(str(others[-1]))
    return last


def _nowhere(reference: ImageReference, capability: Capability) -> RegistryUnavailable:
    what = "tags" if capability == "resolve" else "digests"
    return RegistryUnavailable(f"no place that has images of {reference.domain} may be asked for {what}")
