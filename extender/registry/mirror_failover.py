"""Which of the endpoints that may have an image is asked, in which order, and whose failure counts if none has it.

Knows mirrors and their failures, whose credentials each may see, and how many requests a host gets at once. What is
asked, and what an answer means, is `client`'s business.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from extender.circuit_breaker import Attempt
from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryThrottled,
    RegistryUnavailable,
)
from extender.images.reference import ImageReference
from extender.metrics import counter
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Capability, Endpoint
from extender.registry.endpoint_breaker import EndpointBreakers

MIRRORS = counter(
    "multiarch_mirror_requests_total",
    "Questions for a mirror, by what came of them; missing: it lacks it or denies it; resting: it has failed lately "
    "and was not asked.",
    "outcome",
    ("answered", "missing", "failed", "resting"),
)

T = TypeVar("T")
Ask = Callable[[Endpoint, Credential], Awaitable[T]]
Failure = RegistryError | InvalidManifest
MirrorCredentials = Callable[[ImageReference], Awaitable[tuple[Credential, ...]]]


async def nobody(_reference: ImageReference) -> tuple[Credential, ...]:
    """The credentials for mirrors of one who has none."""
    return (ANONYMOUS,)


class MirrorFailover:
    """Asks one endpoint after the other until one has an answer."""

    def __init__(
        self,
        endpoints_for: Callable[[str], Sequence[Endpoint]],
        *,
        mirror_credentials: MirrorCredentials,
        guard: AddressGuard | None,
        concurrency: int,
        breakers: EndpointBreakers,
    ) -> None:
        """`endpoints_for` gives a domain's endpoints in order; at most `concurrency` requests are at a host at once.

        `mirror_credentials` and `guard` are as `client` describes them.
        """
        self._endpoints_for = endpoints_for
        self._mirror_credentials = mirror_credentials
        self._guard = guard
        self._concurrency = concurrency
        self._breakers = breakers
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # hosts in use only

    async def first_answer(
        self, capability: Capability, reference: ImageReference, credential: Credential, ask: Ask[T]
    ) -> T:
        """The answer of the first endpoint that has what is asked for.

        A mirror that lacks it, fails, or has an open breaker gives way to the next: it may hold only what it was fed.
        If none has it, the failure is the last endpoint's. `ask` is called with an endpoint and a credential that it
        may see.

        Raises:
            RegistryError, InvalidManifest: as `ask`, or the guard.
        """
        endpoints = [each for each in self._endpoints_for(reference.domain) if capability in each.capabilities]
        if len(endpoints) == 1:
            return await self._visit(endpoints[0], reference, credential, ask)
        failures: list[Failure] = []
        for endpoint in endpoints:
            is_last_hope = endpoint is endpoints[-1] and not any(map(_has_answered, failures))
            begin = self._breakers.force if is_last_hope else partial(self._breakers.admit, _key(endpoint))
            try:
                return await self._visit(endpoint, reference, credential, self._recording(ask, begin))
            except (RegistryError, InvalidManifest) as exc:
                failures.append(exc)
        raise _verdict(failures) if failures else _nowhere(reference, capability)

    async def _visit(self, endpoint: Endpoint, reference: ImageReference, credential: Credential, ask: Ask[T]) -> T:
        """What one endpoint says to the first credential that it does not deny, once its host has room."""
        if self._guard:
            self._guard.check_registry(endpoint.root)
        credentials = await self._credentials_for(endpoint, reference, credential)
        async with self._turn(endpoint):
            for shown in credentials[:-1]:
                with contextlib.suppress(RegistryDenied):
                    return await ask(endpoint, shown)
            return await ask(endpoint, credentials[-1])

    def _recording(self, ask: Ask[T], begin: Callable[[], Attempt]) -> Ask[T]:
        """`ask`, with its outcome recorded in the endpoint's breaker; `begin` raises where that refuses."""

        async def ask_and_record(endpoint: Endpoint, shown: Credential) -> T:
            try:
                attempt = begin()
            except RegistryError:
                _tally(endpoint, "resting")
                raise
            try:
                answer = await ask(endpoint, shown)
            except (RegistryError, InvalidManifest) as exc:
                self._record(endpoint, attempt, exc)
                raise
            else:
                self._breakers.record_success(_key(endpoint), attempt)
                _tally(endpoint, "answered")
                return answer
            finally:
                self._breakers.release(_key(endpoint), attempt)

        return ask_and_record

    def _turn(self, endpoint: Endpoint) -> asyncio.Semaphore:
        host = endpoint.root.host_port_subcomponent or ""
        return self._turns.setdefault(host, asyncio.Semaphore(self._concurrency))

    async def _credentials_for(
        self, endpoint: Endpoint, reference: ImageReference, credential: Credential
    ) -> tuple[Credential, ...]:
        """The image's for its registry, and the operator's own for a mirror."""
        if not endpoint.namespace:
            return (credential,)
        there = ImageReference(endpoint.name, endpoint.repository_of(reference.path), reference.tag, reference.digest)
        return await self._mirror_credentials(there) or (ANONYMOUS,)

    def _record(self, endpoint: Endpoint, attempt: Attempt, failure: Failure) -> None:
        if _has_answered(failure):
            self._breakers.record_success(_key(endpoint), attempt)
        elif isinstance(failure, (RegistryThrottled, RegistryUnavailable)) and not failure.host_is_well:
            self._breakers.record_failure(_key(endpoint), attempt, failure)
        _tally(endpoint, "missing" if isinstance(failure, (ManifestNotFound, RegistryDenied)) else "failed")


def _verdict(failures: Sequence[Failure]) -> Failure:
    """The failure of the last endpoint that could be asked, which is nearest the source.

    A registry that fails behind a mirror that answers is not held against the images that the mirror has.
    """
    failure = ([each for each in failures if not isinstance(each, AddressRefused)] or failures)[-1]
    if isinstance(failure, RegistryError) and any(map(_has_answered, failures)):
        failure.host_is_well = True
    return failure


def _nowhere(reference: ImageReference, capability: Capability) -> RegistryUnavailable:
    what = "tags" if capability == "resolve" else "digests"
    error = RegistryUnavailable(f"no place that has images of {reference.domain} may be asked for {what}")
    error.host_is_well = True
    return error


def _has_answered(failure: Failure) -> bool:
    """Whether the endpoint answered, which costs little.

    A 5xx counts: distribution's cache says 500 for what it lacks when its registry is away, and gives what it has.
    """
    return isinstance(failure, (ManifestNotFound, RegistryDenied, InvalidManifest, RegistryFailed))


def _tally(endpoint: Endpoint, outcome: str) -> None:
    if endpoint.namespace:
        MIRRORS[outcome].inc()


def _key(endpoint: Endpoint) -> str:
    return str(endpoint.root)
