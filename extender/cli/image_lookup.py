"""Looks images up for commands, with a progress bar on standard error."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from extender.config.tree import Config
from extender.errors import InvalidReference, RegistryError
from extender.fetcher.settings import FetcherSettings
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.images.content import Content, Failure, content_of
from extender.images.manifest import Image
from extender.images.reference import parse_reference
from extender.registry.endpoint import Endpoint
from extender.registry.registry_client import RegistryClient
from extender.service.cluster_view import NoCluster
from extender.service.resolving import open_pod_resolver


class EndpointAnswer(msgspec.Struct, frozen=True):
    """An endpoint that nodes ask for an image, and what it answered us; empty: an earlier one had the image."""

    url: str
    answered: str


class LookedUp(msgspec.Struct, frozen=True):
    """An image's details or failure, and whom nodes ask for it, in order."""

    answer: Image | Failure
    endpoints: tuple[EndpointAnswer, ...]


def look_up_images(references: Sequence[str], settings: Config) -> list[LookedUp]:
    """Looks the images up concurrently; returns what was found, in order."""
    return asyncio.run(_look_up_all(references, settings))


def answer_of(answer: Image | Failure) -> Content | Failure:
    """What decisions read of an image's details."""
    return answer if isinstance(answer, Failure) else content_of(answer)


async def _look_up_all(references: Sequence[str], settings: Config) -> list[LookedUp]:
    heard: dict[str, str] = {}
    opened: list[LocalSources] = []

    def hear(endpoint: Endpoint, said: str) -> None:
        heard[_repository_of(endpoint)] = said

    @contextlib.asynccontextmanager
    async def open_sources(fetcher_settings: FetcherSettings) -> AsyncIterator[LocalSources]:
        async with open_local_sources(fetcher_settings, hear) as sources:
            opened.append(sources)
            yield sources

    progress = Progress(
        TextColumn("Looking up"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    async with open_pod_resolver(settings, NoCluster(), open_sources) as pod_resolver:
        with progress:
            task = progress.add_task("", total=len(references))

            async def one(reference: str) -> LookedUp:
                answer = await pod_resolver.resolver.describe(reference, pod_resolver.keyring)
                progress.update(task, advance=1, description=reference)
                return LookedUp(answer, tuple(_answers(opened[0].registry, reference, heard)))

            return list(await asyncio.gather(*map(one, references)))


def _answers(registry: RegistryClient, text: str, heard: Mapping[str, str]) -> Iterator[EndpointAnswer]:
    """Whom nodes ask for the image, and what they answered; none where nodes ask nobody."""
    try:
        reference = parse_reference(text)
        reference = reference.with_digest(reference.digest) if reference.digest else reference
        endpoints = registry.endpoints_for(reference)
    except (InvalidReference, RegistryError):
        return
    for endpoint in endpoints:
        url = endpoint.url_of(f"manifests/{reference.digest or reference.tag}")
        yield EndpointAnswer(str(url), heard.get(_repository_of(endpoint), ""))


def _repository_of(endpoint: Endpoint) -> str:
    return f"{endpoint.root}/{endpoint.repository}"
