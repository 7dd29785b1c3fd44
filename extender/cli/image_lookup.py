"""Looks images up for commands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from extender.cli.console import progress_bar
from extender.config.tree import Config
from extender.errors import RegistryError
from extender.fetcher.settings import FetcherSettings
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.images.content import Content, Failure, content_of
from extender.images.manifest import Image
from extender.images.platform import Platform
from extender.registry.endpoint import Endpoint
from extender.registry.registry_client import RegistryClient
from extender.resolver.image_cache import Target
from extender.resolver.platform_verifier import PlatformVerifier
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.resolving import open_pod_resolver
from extender.verifier.verification import Verification

VERIFY_SECONDS = 120.0
"""How long a look at one platform of an image may take."""


class EndpointAnswer(msgspec.Struct, frozen=True):
    """An endpoint that nodes ask for an image, and what it answered us; empty: an earlier one had the image."""

    url: str
    answered: str


class LookedUp(msgspec.Struct, frozen=True):
    """An image's details or failure, and whom nodes ask for it, in order.

    `inside` is what a look inside found of the platforms that were looked at.
    """

    answer: Image | Failure
    endpoints: tuple[EndpointAnswer, ...]
    inside: tuple[Verification, ...] = ()


def look_up_images(
    references: Sequence[str], settings: Config, *, look_inside: bool = False, wanted: Sequence[Platform] = ()
) -> list[LookedUp]:
    """Looks the images up concurrently; returns what was found, in order.

    `look_inside`: looks into one image after the other besides, at the `wanted` platforms, or at all that it claims.
    """
    return asyncio.run(_look_up_all(references, settings, wanted if look_inside else None))


def answer_of(answer: Image | Failure) -> Content | Failure:
    """What decisions read of an image's details."""
    return answer if isinstance(answer, Failure) else content_of(answer)


async def _look_up_all(
    references: Sequence[str], settings: Config, wanted: Sequence[Platform] | None
) -> list[LookedUp]:
    heard: dict[str, str] = {}
    opened: list[LocalSources] = []

    def hear(endpoint: Endpoint, said: str) -> None:
        heard[_repository_of(endpoint)] = said

    @contextlib.asynccontextmanager
    async def open_sources(fetcher_settings: FetcherSettings) -> AsyncIterator[LocalSources]:
        async with open_local_sources(fetcher_settings, hear) as sources:
            opened.append(sources)
            yield sources

    async with open_pod_resolver(settings, ClusterView(), open_sources) as pod_resolver:
        with progress_bar(len(references)) as progress:
            looking = asyncio.Lock()

            async def one(reference: str) -> LookedUp:
                answer = await pod_resolver.resolver.describe(reference, pod_resolver.keyring)
                inside: tuple[Verification, ...] = ()
                if wanted is not None and isinstance(answer, Image):
                    async with looking:
                        inside = await _look_inside(opened[0], pod_resolver, reference, answer, wanted)
                progress.step(reference)
                target = pod_resolver.resolver.cache.references.target_of(reference)
                return LookedUp(answer, tuple(_answers(opened[0].registry, target, heard)), inside)

            return list(await asyncio.gather(*map(one, references)))


async def _look_inside(
    sources: LocalSources, pod_resolver: PodResolver, reference: str, image: Image, wanted: Sequence[Platform]
) -> tuple[Verification, ...]:
    """What is found of the wanted platforms that the image claims, of all if none are wanted."""
    cache = pod_resolver.resolver.cache
    target, verifier = cache.references.target_of(reference), PlatformVerifier(sources, cache)
    if isinstance(target, Failure):
        return ()
    platforms = [entry.platform for entry in image.entries if not wanted or entry.platform in wanted]
    return tuple(
        [await verifier.verify(target, image.digest, each, pod_resolver.keyring, VERIFY_SECONDS) for each in platforms]
    )


def _answers(registry: RegistryClient, target: Target | Failure, heard: Mapping[str, str]) -> Iterator[EndpointAnswer]:
    """Whom nodes ask for the image, and what they answered; none where nodes ask nobody."""
    if isinstance(target, Failure):
        return
    reference = target.asked
    try:
        endpoints = registry.endpoints_for(reference)
    except RegistryError:
        return
    for endpoint in endpoints:
        url = endpoint.url_of(f"manifests/{reference.digest or reference.tag}")
        yield EndpointAnswer(str(url), heard.get(_repository_of(endpoint), ""))


def _repository_of(endpoint: Endpoint) -> str:
    return f"{endpoint.root}/{endpoint.repository}"
