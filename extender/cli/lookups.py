"""Looks images up for commands: every lookup of a command goes through `side_by_side`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from extender.cli.console import progress_bar
from extender.config.tree import Config
from extender.credentials.keyring import Credential
from extender.errors import InvalidManifest, RegistryError, UnsupportedManifest
from extender.fetcher.messages import Look
from extender.fetcher.sources import ImageListener, LocalSources, open_local_sources
from extender.images.content import Content, Failure, content_of
from extender.images.manifest import Image, Kind
from extender.images.platform import Platform
from extender.images.reference import ImageReference
from extender.machine import THIS_MACHINE
from extender.registry.endpoint import Endpoint
from extender.registry.registry_client import RegistryClient
from extender.resolver.image_cache import Target
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.keys import credential_key
from extender.service.resolving import open_pod_resolver
from extender.turns import OPERATOR
from extender.verifier.image_verifier import ImageVerifier
from extender.verifier.verification import PlatformState, Verification

AT_ONCE = 64
"""Lookups under way. Of these 16 are at one host; the others wait for their turns."""
_MOST_WHY = 200  # characters of why a verification failed
VERIFY_SECONDS = 120.0
"""How long the verification of one platform of an image may take."""


T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(
    wanted: Collection[T], work: Callable[[T], Awaitable[None]], stopped: asyncio.Event | None = None
) -> None:
    """Calls `work` for each, as `AT_ONCE` allows; returns when all have ended, or `stopped` is set.

    The first failure ends the others, and is raised.
    """
    stopped = stopped or asyncio.Event()
    waiting = iter(wanted)

    async def worker() -> None:
        for each in waiting:
            if stopped.is_set():
                return
            await work(each)

    workers = [asyncio.create_task(worker()) for _ in range(min(AT_ONCE, len(wanted)))]
    stopping = asyncio.create_task(stopped.wait())
    finished = asyncio.gather(*workers)
    try:
        both: list[asyncio.Future[Any]] = [finished, stopping]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            finished.result()
    finally:
        for task in (*workers, stopping):
            task.cancel()
        await asyncio.gather(*workers, stopping, finished, return_exceptions=True)


async def each_of(wanted: Sequence[T], work: Callable[[T], Awaitable[R]], text_of: Callable[[T], str]) -> list[R]:
    """What `work` returns for each, in order, as `side_by_side`. Shows what is done meanwhile."""
    found: dict[int, R] = {}
    with progress_bar(len(wanted)) as progress:

        async def one(index: int) -> None:
            found[index] = await work(wanted[index])
            progress.step(text_of(wanted[index]))

        await side_by_side(range(len(wanted)), one)
    return [found[index] for index in range(len(wanted))]


@contextlib.asynccontextmanager
async def open_lookups(
    settings: Config, cluster_view: ClusterView, heard: ImageListener | None = None
) -> AsyncIterator[tuple[LocalSources, PodResolver]]:
    """What asks registries, in this process, and the resolver over it; `heard` as in `open_local_sources`.

    Raises:
        ConfigError: a file or a value of the configuration cannot be used.
    """
    id_key = credential_key(settings.cache.key_file, THIS_MACHINE.token_bytes)
    async with (
        open_local_sources(settings.registry, id_key, machine=THIS_MACHINE, on_answer=heard) as sources,
        open_pod_resolver(sources, settings, cluster_view, THIS_MACHINE) as pod_resolver,
    ):
        yield sources, pod_resolver


class RefusedSecrets:
    """The pull secrets that the account may not read: images that only these open are denied for it alone."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {}

    def note(self, namespace: str, name: str, why: str) -> None:
        """Adds one, as `OnRefused`."""
        self._found.setdefault(namespace, {})[name] = why

    def problems(self) -> list[str]:
        """A line for each namespace."""
        return [
            f"pull secrets of namespace {namespace} ({', '.join(sorted(found))}), so what only these open is denied: "
            f"{next(iter(found.values()))}"
            for namespace, found in sorted(self._found.items())
        ]


class EndpointAnswer(msgspec.Struct, frozen=True):
    """An endpoint that nodes ask for an image, and what it answered us; empty: an earlier one had the image."""

    url: str
    answered: str


class LookedUp(msgspec.Struct, frozen=True):
    """An image's details or failure, and whom nodes ask for it, in order.

    `verifications` are of the platforms of which the programs were read.
    """

    answer: Image | Failure
    endpoints: tuple[EndpointAnswer, ...]
    verifications: tuple[Verification, ...] = ()


def look_up_images(
    references: Sequence[str], settings: Config, *, verify: bool = False, wanted: Sequence[Platform] = ()
) -> list[LookedUp]:
    """Looks the images up concurrently; returns what was found, in order.

    `verify`: verifies one image after the other besides, on the `wanted` platforms, or on all that it claims.
    """
    return asyncio.run(_look_up_all(references, settings, wanted if verify else None))


def answer_of(answer: Image | Failure) -> Content | Failure:
    """What decisions read of an image's details."""
    return answer if isinstance(answer, Failure) else content_of(answer)


async def _look_up_all(
    references: Sequence[str], settings: Config, wanted: Sequence[Platform] | None
) -> list[LookedUp]:
    answers: dict[tuple[str, str], str] = {}

    def note_answer(reference: ImageReference, endpoint: Endpoint, said: str) -> None:
        answers[_repository_of(endpoint), str(reference)] = said

    async with open_lookups(settings, ClusterView(), note_answer) as (sources, pod_resolver):
        registry, resolver = sources.registry, pod_resolver.resolver
        targets = {each: resolver.cache.references.target_of(each) for each in references}
        found = await each_of(references, lambda each: resolver.describe(each, pod_resolver.keyring), str)
        verifications: list[tuple[Verification, ...]] = [()] * len(references)
        if wanted is not None:
            with progress_bar(len(references)) as progress:
                for index, (reference, answer) in enumerate(zip(references, found, strict=True)):
                    if isinstance(answer, Image):
                        verifications[index] = await _verify(sources, pod_resolver, reference, answer, wanted)
                    progress.step(reference)
        return [
            LookedUp(answer, tuple(_endpoint_answers(registry, targets[reference], answers)), verified)
            for reference, answer, verified in zip(references, found, verifications, strict=True)
        ]


async def _verify(
    sources: LocalSources, pod_resolver: PodResolver, reference: str, image: Image, wanted: Sequence[Platform]
) -> tuple[Verification, ...]:
    """What is found of the wanted platforms that the image claims, of all if none are wanted.

    Nodes look at no platform of a single manifest, so whatever is wanted, its program is verified.
    """
    resolver, keyring = pod_resolver.resolver, pod_resolver.keyring
    target = resolver.cache.references.target_of(reference)
    if not isinstance(target, Target):
        return ()
    asked, access = target.asked.with_digest(image.digest), await resolver.access_of(target, keyring)
    look = Look(tenant=OPERATOR, reference=asked, kubelet_name=target.reference, access=access)

    async def verify(platform: Platform, credential: Credential) -> list[Verification]:
        return await ImageVerifier(sources.registry, asked, platform, credential).verify(VERIFY_SECONDS)

    found: list[Verification] = []
    is_single = image.kind is Kind.MANIFEST
    for platform in (each.platform for each in image.entries if is_single or not wanted or each.platform in wanted):
        try:
            found += await sources.ask(look, partial(verify, platform))
        except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
            found.append(Verification(platform=platform, state=PlatformState.CLAIMED, detail=str(exc)[:_MOST_WHY]))
    return tuple(found)


def _endpoint_answers(
    registry: RegistryClient, target: Target | Content | Failure, answers: Mapping[tuple[str, str], str]
) -> Iterator[EndpointAnswer]:
    """Whom nodes ask for the image, and what they answered; none where nodes ask nobody."""
    if not isinstance(target, Target):
        return
    reference = target.asked
    try:
        endpoints = registry.endpoints_for(reference)
    except RegistryError:
        return
    for endpoint in endpoints:
        url = endpoint.url_of(f"manifests/{reference.digest or reference.tag}")
        yield EndpointAnswer(str(url), answers.get((_repository_of(endpoint), str(reference)), ""))


def _repository_of(endpoint: Endpoint) -> str:
    return f"{endpoint.root}/{endpoint.repository}"
