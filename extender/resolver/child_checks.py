"""Checks in the background that registries serve the manifests which an index lists, for platforms that nodes have.

Those are the platforms of the cluster's nodes, and amd64 and arm64, whose first nodes may join when images are known.
A lookup never waits for it. A child is asked for by a HEAD, at the places where a node would ask in turn: it is missing
only if none of them has it, and only once a GET has said so too, since some caches know no child by HEAD.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from extender.credentials.keyring import Credential
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryError,
    RegistryThrottled,
    UnsupportedManifest,
)
from extender.images.content import Content
from extender.images.manifest import Image, Kind
from extender.images.platform import Compatibility, Platform, satisfies
from extender.images.platform_states import DeniedPlatform, PlatformState
from extender.images.reference import ImageReference
from extender.placement.nodes import USUAL
from extender.resolver.image_cache import ImageCache
from extender.resolver.image_source import ImageSource

log = structlog.get_logger()

# Hosts that are asked side by side, and indexes that wait for one host, of 1 KB each.
_MOST_HOSTS, _MOST_WAITING = 64, 500
_CHECK_SECONDS = 20.0
_EXACTLY = Compatibility()


class _Child(NamedTuple):
    """A manifest that an index lists for a platform."""

    platform: Platform
    digest: str


class _WaitingIndex(NamedTuple):
    """An index and those of its children that are to be checked, with the credential that was shown the index."""

    reference: ImageReference
    children: tuple[_Child, ...]
    credential: Credential
    tenant: str


class ChildChecks:
    """The checks that wait, a queue for each registry host. Close it at the end."""

    def __init__(
        self, source: ImageSource, cache: ImageCache, cluster_platforms: Callable[[], frozenset[Platform]]
    ) -> None:
        """`cluster_platforms` gives the platforms of the cluster's nodes, none while they are not known."""
        self._source = source
        self._cache = cache
        self._cluster_platforms = cluster_platforms
        self._waiting: dict[str, deque[_WaitingIndex]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def note_image(self, reference: ImageReference, image: Image, credential: Credential, tenant: str) -> None:
        """Has the children of an index that was just described checked; of no other image. Takes microseconds."""
        if image.kind is Kind.INDEX and image.states_platforms:
            nodes = self._cluster_platforms()
            nodes = nodes and nodes.union(USUAL)
            children = [_Child(entry.platform, entry.digest) for entry in image.entries]
            wanted = tuple(
                child for child in children if any(satisfies(node, child.platform, _EXACTLY) for node in nodes)
            )
            if wanted:
                self._add(_WaitingIndex(reference.pinned_to(image.digest), wanted, credential, tenant))

    def note_confirmed(
        self, reference: ImageReference, digest: str, content: Content, credential: Credential, tenant: str
    ) -> None:
        """Has children checked again that were missing, now that the registry has confirmed the index."""
        missing = tuple(
            _Child(each.platform, each.detail) for each in content.denied if each.state is PlatformState.MISSING
        )
        if missing:
            self._add(_WaitingIndex(reference.pinned_to(digest), missing, credential, tenant))

    async def settle(self) -> None:
        """Returns when nothing waits any more."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Ends all checks."""
        self._waiting.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, index: _WaitingIndex) -> None:
        host = index.reference.domain
        waiting = self._waiting.get(host, ())
        if len(waiting) >= _MOST_WAITING or (host not in self._tasks and len(self._tasks) >= _MOST_HOSTS):
            return
        self._waiting.setdefault(host, deque()).append(index)
        task = self._tasks.get(host)
        if task is None or task.done():
            context = contextvars.Context()
            self._tasks[host] = asyncio.get_running_loop().create_task(self._work(host), context=context)
            self._tasks[host].add_done_callback(lambda task: self._end(host, task))

    def _end(self, host: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(host) is task:
            del self._tasks[host]

    async def _work(self, host: str) -> None:
        try:
            while waiting := self._waiting.get(host):
                await self._check(waiting.popleft())
        except Exception:  # a defect of ours must not end the service
            log.exception("children.crashed", host=host)
        finally:
            self._waiting.pop(host, None)

    async def _check(self, index: _WaitingIndex) -> None:
        denied, running = list[DeniedPlatform](), list[tuple[Platform, PlatformState]]()
        for child in index.children:
            found = await self._find(index, child)
            if found is None:
                continue
            if found.state is PlatformState.CLAIMED:
                running.append((child.platform, PlatformState.CLAIMED))
            else:
                denied.append(found)
        digest, repository = index.reference.digest, index.reference.repository
        known = self._cache.shown(repository, digest)
        running = [
            each
            for each in running
            if known and known.state_of(each[0]) in (PlatformState.MISSING, PlatformState.CONTRADICTORY)
        ]
        if denied:
            log.warning(
                "image.children_denied",
                image=str(index.reference),
                platforms=[f"{each.platform}: {each.state}" for each in denied],
            )
        if denied or running:
            await self._cache.judge(repository, digest, denied, running)

    async def _find(self, index: _WaitingIndex, child: _Child) -> DeniedPlatform | None:
        """What is known of the child now, *claimed* if it is there; None if that cannot be found out."""
        reference = index.reference.pinned_to(child.digest)
        try:
            try:
                stated = await self._source.state_digest(
                    reference, index.credential, tenant=index.tenant, seconds=_CHECK_SECONDS
                )
            except ManifestNotFound:
                image = await self._source.describe(
                    reference, index.credential, tenant=index.tenant, seconds=_CHECK_SECONDS
                )
                return _judge(child, image)
        except ManifestNotFound:
            return DeniedPlatform(child.platform, PlatformState.MISSING, detail=child.digest)
        except RegistryThrottled:
            self._waiting.get(reference.domain, deque()).clear()  # which costs lookups nothing
            return None
        except (RegistryError, InvalidManifest, UnsupportedManifest):
            return None
        return DeniedPlatform(child.platform, PlatformState.CLAIMED) if stated else None


def _judge(child: _Child, image: Image) -> DeniedPlatform:
    """What a child's own configuration makes of its platform."""
    stated = contradiction(child.platform, image)
    if stated is None:
        return DeniedPlatform(child.platform, PlatformState.CLAIMED)
    return DeniedPlatform(child.platform, PlatformState.CONTRADICTORY, detail=str(stated))


def contradiction(claimed: Platform, image: Image) -> Platform | None:
    """The platform that the configuration of a child names, if it is of another system or architecture; else None.

    Words that no platform has contradict nothing, since runtimes choose by the index.
    """
    if image.kind is not Kind.MANIFEST or not image.entries:
        return None
    (stated,) = (entry.platform for entry in image.entries)
    return None if (stated.os, stated.architecture) == (claimed.os, claimed.architecture) else stated
