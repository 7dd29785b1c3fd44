"""Which of the places that may have an image is asked, in which order, and whose word stands when none has it.

Knows mirrors and their troubles, whose credentials each may see, and how many ask a host at once. What is asked, and
what an answer means, is `client`'s business.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

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
from extender.registry.endpoint_breaker import Rests

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
    """Asks one place after the other until one has an answer."""

    def __init__(
        self,
        endpoints_for: Callable[[str], Sequence[Endpoint]],
        *,
        mirror_credentials: MirrorCredentials,
        guard: AddressGuard | None,
        concurrency: int,
        rests: Rests,
        clock: Callable[[], float],
    ) -> None:
        """`endpoints_for` a domain are the places in order; `concurrency` may ask each host. The rest is `client`'s."""
        self._endpoints_for = endpoints_for
        self._mirror_credentials = mirror_credentials
        self._guard = guard
        self._concurrency = concurrency
        self._rests = rests
        self._clock = clock
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # hosts in use only

    async def first_answer(
        self, capability: Capability, reference: ImageReference, credential: Credential, ask: Ask[T]
    ) -> T:
        """What the first place says that has what is asked for; where none has, the last one's word stands.

        A mirror that lacks it, fails, or is at rest gives way to the next: it may hold only what it was fed. `ask` is
        called with a place and a credential that it may see.

        Raises:
            RegistryError, InvalidManifest: as `ask`, or the guard.
        """
        endpoints = [each for each in self._endpoints_for(reference.domain) if capability in each.capabilities]
        if len(endpoints) == 1:
            return await self._visit(endpoints[0], reference, credential, ask)
        failures: list[Failure] = []
        for endpoint in endpoints:
            is_last_hope = endpoint is endpoints[-1] and not any(map(_has_answered, failures))
            minding = self._minding_rests(ask, may_rest=not is_last_hope)
            try:
                return await self._visit(endpoint, reference, credential, minding)
            except (RegistryError, InvalidManifest) as exc:
                failures.append(exc)
        raise _verdict(failures) if failures else _nowhere(reference, capability)

    async def _visit(self, endpoint: Endpoint, reference: ImageReference, credential: Credential, ask: Ask[T]) -> T:
        """What one place says to the first credential that it does not deny, when there is room there."""
        if self._guard:
            self._guard.check_registry(endpoint.root)
        credentials = await self._credentials_for(endpoint, reference, credential)
        async with self._turn(endpoint):
            for shown in credentials[:-1]:
                with contextlib.suppress(RegistryDenied):
                    return await ask(endpoint, shown)
            return await ask(endpoint, credentials[-1])

    def _minding_rests(self, ask: Ask[T], *, may_rest: bool) -> Ask[T]:
        """`ask`, which leaves a place alone that has failed lately, if it may, and remembers which one fails now."""

        async def mind(endpoint: Endpoint, shown: Credential) -> T:
            resting = self._rests.standing(_key(endpoint)) if may_rest else None
            if resting:
                _tally(endpoint, "resting")
                raise resting
            asked_at = self._clock()
            try:
                answer = await ask(endpoint, shown)
            except (RegistryError, InvalidManifest) as exc:
                self._learn(endpoint, exc, asked_at)
                raise
            self._rests.end(_key(endpoint))
            _tally(endpoint, "answered")
            return answer

        return mind

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

    def _learn(self, endpoint: Endpoint, failure: Failure, asked_at: float) -> None:
        if _has_answered(failure):
            self._rests.end(_key(endpoint))
        elif isinstance(failure, (RegistryThrottled, RegistryUnavailable)) and not failure.host_is_well:
            self._rests.begin(_key(endpoint), failure, asked_at)
        _tally(endpoint, "missing" if isinstance(failure, (ManifestNotFound, RegistryDenied)) else "failed")


def _verdict(failures: Sequence[Failure]) -> Failure:
    """The word of the last that could be asked, which is nearest the source.

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
    """Whether asking cost little. A 5xx counts: distribution's cache says 500 for what it lacks when its registry is
    away, and gives what it has.
    """
    return isinstance(failure, (ManifestNotFound, RegistryDenied, InvalidManifest, RegistryFailed))


def _tally(endpoint: Endpoint, outcome: str) -> None:
    if endpoint.namespace:
        MIRRORS[outcome].inc()


def _key(endpoint: Endpoint) -> str:
    return str(endpoint.root)
