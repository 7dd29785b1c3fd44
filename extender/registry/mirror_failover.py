"""Tries the endpoints of a registry in order, and chooses which error to raise if none has the image.

Chooses the credentials that each endpoint receives, and limits concurrent requests per host. `client` sends the
requests and interprets the responses.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeGuard, TypeVar

from extender.budgets import declare_budget
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
)
from extender.images.reference import ImageReference
from extender.metrics import counter
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Capability, Endpoint
from extender.registry.endpoint_breaker import EndpointAttempt, EndpointBreakers
from extender.turns import REVOKE_SECONDS, TurnRevoked, Turns

MIRRORS = counter(
    "multiarch_mirror_requests_total",
    "Questions for a mirror, by what came of them; missing: it lacks it or denies it; resting: it has failed lately "
    "and was not asked.",
    "outcome",
    ("answered", "missing", "failed", "resting"),
)

_REQUESTS = declare_budget(
    "registry.mirror_failover.requests",
    unit="requests under way",
    total=256,
    most_each=256,
    why="one for each lookup that sends requests; at one host `registry.concurrency_per_host`, of which one tenant "
    "alone gets three quarters",
)

T = TypeVar("T")
Ask = Callable[[Endpoint, Credential], Awaitable[T]]
Failure = RegistryError | InvalidManifest
MirrorCredentials = Callable[[ImageReference], Awaitable[tuple[Credential, ...]]]


async def nobody(_reference: ImageReference) -> tuple[Credential, ...]:
    """Returns the anonymous credential, for operators without credentials for mirrors."""
    return (ANONYMOUS,)


class MirrorFailover:
    """Tries one endpoint after the other until one has what is requested."""

    def __init__(
        self,
        endpoints_for: Callable[[str], Sequence[Endpoint]],
        *,
        mirror_credentials: MirrorCredentials,
        guard: AddressGuard | None,
        concurrency: int,
        breakers: EndpointBreakers,
        clock: Callable[[], float],
    ) -> None:
        """`endpoints_for` returns a domain's endpoints in order; `concurrency` limits concurrent requests per host.

        `mirror_credentials`, `guard` and `clock` are those of `RegistryClient`.
        """
        self._endpoints_for = endpoints_for
        self._mirror_credentials = mirror_credentials
        self._guard = guard
        self._breakers = breakers
        most_each = max(1, concurrency * 3 // 4)  # of a tenant while no other wants the host
        self._turns = Turns(_REQUESTS, clock, at_host=concurrency, most_each_at_host=most_each)

    async def first_answer(
        self, capability: Capability, reference: ImageReference, credential: Credential, ask: Ask[T]
    ) -> T:
        """Returns the result of `ask` for the first endpoint that has what is requested.

        Goes on to the next endpoint if a mirror lacks it, fails, or has an open breaker: a mirror may hold only a part
        of the images. If no endpoint has it, raises the last one's error. Calls `ask` with an endpoint and a credential
        that this endpoint may receive.

        Raises:
            RegistryError, InvalidManifest: from `ask` or the guard.
        """
        endpoints = [each for each in self._endpoints_for(reference.domain) if capability in each.capabilities]
        if len(endpoints) == 1:
            return await self._visit(endpoints[0], reference, credential, ask)
        failures: list[Failure] = []
        for endpoint in endpoints:
            is_last_hope = endpoint is endpoints[-1] and not any(map(_has_answered, failures))
            begin = self._breakers.force if is_last_hope else self._breakers.admit
            try:
                return await self._visit(endpoint, reference, credential, self._recording(ask, begin))
            except (RegistryError, InvalidManifest) as exc:
                failures.append(exc)
        raise _verdict(failures) if failures else _nowhere(reference, capability)

    async def _visit(self, endpoint: Endpoint, reference: ImageReference, credential: Credential, ask: Ask[T]) -> T:
        """Returns the endpoint's result for the first credential that it does not deny; waits for its host's limit."""
        if self._guard:
            self._guard.check_registry(endpoint.root)
        credentials = await self._credentials_for(endpoint, reference, credential)
        try:
            async with self._turns.turn(endpoint.root.host_port_subcomponent or ""):
                for shown in credentials[:-1]:
                    with contextlib.suppress(RegistryDenied):
                        return await ask(endpoint, shown)
                return await ask(endpoint, credentials[-1])
        except TurnRevoked as exc:
            words = f"{endpoint.name} did not answer within {REVOKE_SECONDS:g} s, and others wait for it"
            raise RegistryUnavailable(words) from exc

    def _recording(self, ask: Ask[T], begin: Callable[[str, CredentialId], EndpointAttempt]) -> Ask[T]:
        """Returns `ask` with its outcome recorded in the endpoint's breaker; `begin` raises if the breaker refuses."""

        async def ask_and_record(endpoint: Endpoint, shown: Credential) -> T:
            try:
                attempt = begin(_key(endpoint), shown.id)
            except RegistryError:
                _tally(endpoint, "resting")
                raise
            try:
                answer = await ask(endpoint, shown)
            except (RegistryError, InvalidManifest) as exc:
                self._record(endpoint, shown, attempt, exc)
                raise
            else:
                self._breakers.record_success(_key(endpoint), shown.id, attempt)
                _tally(endpoint, "answered")
                return answer
            finally:
                self._breakers.release(_key(endpoint), shown.id, attempt)

        return ask_and_record

    async def _credentials_for(
        self, endpoint: Endpoint, reference: ImageReference, credential: Credential
    ) -> tuple[Credential, ...]:
        """Returns the image's credential for its own registry, or the operator's credentials for a mirror."""
        if not endpoint.namespace:
            return (credential,)
        there = ImageReference(endpoint.name, endpoint.repository_of(reference.path), reference.tag, reference.digest)
        return await self._mirror_credentials(there) or (ANONYMOUS,)

    def _record(self, endpoint: Endpoint, shown: Credential, attempt: EndpointAttempt, failure: Failure) -> None:
        if _has_answered(failure):
            self._breakers.record_success(_key(endpoint), shown.id, attempt)
        elif _counts(failure):
            self._breakers.record_failure(_key(endpoint), shown.id, attempt, failure)
        is_missing = isinstance(failure, (ManifestNotFound, RegistryDenied, RegistryRefusedImage))
        _tally(endpoint, "missing" if is_missing else "failed")


def _verdict(failures: Sequence[Failure]) -> Failure:
    """Returns the failure of the last endpoint that the guard did not refuse, which is nearest the source.

    Sets `host_is_well` if any endpoint has answered: a failing registry behind a mirror that answers must not count
    against the images that the mirror has.
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
    """Whether the endpoint answered, which takes little time.

    A 5xx counts as an answer: while its registry is down, distribution's cache answers 500 for content that it lacks
    and still serves content that it has.
    """
    return isinstance(
        failure, (ManifestNotFound, RegistryDenied, RegistryRefusedImage, InvalidManifest, RegistryFailed)
    )


def _counts(failure: Failure) -> TypeGuard[RegistryThrottled | RegistryUnavailable]:
    """Whether the failure rests the endpoint. A name that does not resolve does: the next endpoint is asked sooner."""
    if isinstance(failure, RegistryNotAsked) and not isinstance(failure, NameUnresolved):
        return False
    return isinstance(failure, (RegistryThrottled, RegistryUnavailable)) and not failure.host_is_well


def _tally(endpoint: Endpoint, outcome: str) -> None:
    if endpoint.namespace:
        MIRRORS[outcome].inc()


def _key(endpoint: Endpoint) -> str:
    return str(endpoint.root)
