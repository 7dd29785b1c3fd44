"""Looks images up for commands, with a progress bar on standard error."""

import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from extender.config.tree import Config
from extender.fetcher.sources import open_local_sources
from extender.images.content import Content, Failure, content_of
from extender.images.manifest import Image
from extender.service.cluster_view import NoCluster
from extender.service.resolving import open_pod_resolver


def look_up_images(references: Sequence[str], settings: Config) -> list[Image | Failure]:
    """Each image's details or failure, in order; looks the images up concurrently."""
    return asyncio.run(_look_up_all(references, settings))


def answer_of(answer: Image | Failure) -> Content | Failure:
    """What decisions read of an image's details."""
    return answer if isinstance(answer, Failure) else content_of(answer)


async def _look_up_all(references: Sequence[str], settings: Config) -> list[Image | Failure]:
    progress = Progress(
        TextColumn("Looking up"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    async with open_pod_resolver(settings, NoCluster(), open_local_sources) as pod_resolver:
        with progress:
            task = progress.add_task("", total=len(references))

            async def one(reference: str) -> Image | Failure:
                answer = await pod_resolver.resolver.describe(reference, pod_resolver.keyring)
                progress.update(task, advance=1, description=reference)
                return answer

            return list(await asyncio.gather(*map(one, references)))
