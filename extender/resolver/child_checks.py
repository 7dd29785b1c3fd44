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

from extender.fetcher.messages import Failed, Look
from extender.images.content import Cause
from extender.images.manifest import Image, Kind
from extender.images.platform import Compatibility, Platform, satisfies
from extender.images.platform_states import FalselyClaimed, PlatformState
from extender.placement.nodes import USUAL
from extender.resolver.image_cache import ImageCache
from extender.resolver.lookups import Confirmed, Sources
from extender.turns import NoTurn, Turns

log = structlog.get_logger()

# Hosts that are asked side by side, and indexes that wait for one host, of 1 KB each.
_MOST_HOSTS, _MOST_WAITING = 64, 500
_CHECK_SECONDS = 20.0
_REST_SECONDS = 0.01  # before the first check, in which whoever waits for the lookup is answered
_EXACTLY = Compatibility()


class _Child(NamedTuple):
    """A manifest that an index lists for a platform."""

    platform: Platform
    digest: str


class _WaitingIndex(NamedTuple):
    """An index, as a registry has shown it, and those of its children that are to be checked."""

    shown: Confirmed
    children: tuple[_Child, ...]


class ChildChecks:
    """The checks that wait, a queue for each registry host. Close it at the end."""

    def __init__(
        self, sources: Sources, cache: ImageCache, turns: Turns, cluster_platforms: Callable[[], frozenset[Platform]]
    ) -> None:
        """Each request takes one of the `turns`.

        `cluster_platforms` gives the platforms of the cluster's nodes, none while they are not known.
        """
        self._sources = sources
        self._turns = turns
        self._cache = cache
        self._cluster_platforms = cluster_platforms
        self._waiting: dict[str, deque[_WaitingIndex]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def note(self, shown: Confirmed, image: Image | None) -> None:
        """Has the children of an index that was just described checked, or those that were missing. Microseconds.

        `image` is None if the registry has confirmed an index that it had shown before.
        """
        if image is None:
            false_claims = [each for each in shown.content.falsely_claimed if each.state is PlatformState.MISSING]
            wanted = tuple(_Child(each.platform, each.detail) for each in false_claims)
        elif image.kind is Kind.INDEX and image.states_platforms:
            nodes = self._cluster_platforms()
            nodes = nodes and nodes.union(USUAL)
            wanted = tuple(
                _Child(entry.platform, entry.digest)
                for entry in image.entries
                if any(satisfies(node, entry.platform, _EXACTLY) for node in nodes)
            )
        else:
            return
        if wanted:
            self._add(_WaitingIndex(shown, wanted))

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
        host = index.shown.target.reference.domain
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
            await asyncio.sleep(_REST_SECONDS)
            while waiting := self._waiting.get(host):
                await self._check(waiting.popleft())
        except Exception:  # a defect of ours must not end the service
            log.exception("children.crashed", host=host)
        finally:
            self._waiting.pop(host, None)

    async def _check(self, index: _WaitingIndex) -> None:
        false_claims, running = list[FalselyClaimed](), list[tuple[Platform, PlatformState]]()
        for child in index.children:
            found = await self._find(index, child)
            if found is None:
                continue
            if found.state is PlatformState.CLAIMED:
                running.append((child.platform, PlatformState.CLAIMED))
            else:
                false_claims.append(found)
        digest, repository = index.shown.digest, index.shown.target.repository
        known = self._cache.shown(repository, digest)
        running = [
            each
            for each in running
            if known and known.state_of(each[0]) in (PlatformState.MISSING, PlatformState.CONTRADICTORY)
        ]
        if false_claims:
            log.warning(
                "image.children_denied",
                image=str(index.shown.target.asked.pinned_to(digest)),
                platforms=[f"{each.platform}: {each.state}" for each in false_claims],
            )
        if false_claims or running:
            await self._cache.judge(repository, digest, false_claims, running)

    async def _find(self, index: _WaitingIndex, child: _Child) -> FalselyClaimed | None:
        """What is known of the child now, *claimed* if it is there; None if that cannot be found out."""
        shown = index.shown
        look = Look(
            tenant=shown.tenant,
            reference=shown.target.asked.pinned_to(child.digest),
            kubelet_name=shown.target.reference,
            access=shown.access,
            seconds=_CHECK_SECONDS,
            known=(child.digest,),
        )
        try:
            async with self._turns.turn(shown.tenant, shown.target.reference.domain):
                answer = await self._sources.look(look)
        except NoTurn:
            return None
        if not isinstance(answer, Failed):
            there = FalselyClaimed(child.platform, PlatformState.CLAIMED)
            return _judge(child, answer.image) if answer.image else there
        if answer.failure.cause is Cause.MISSING:
            return FalselyClaimed(child.platform, PlatformState.MISSING, detail=child.digest)
        if answer.failure.cause is Cause.THROTTLED:
            self._waiting.get(shown.target.reference.domain, deque()).clear()  # which costs lookups nothing
        return None


def _judge(child: _Child, image: Image) -> FalselyClaimed:
    """What a child's own configuration makes of its platform."""
    stated = contradiction(child.platform, image)
    if stated is None:
        return FalselyClaimed(child.platform, PlatformState.CLAIMED)
    return FalselyClaimed(child.platform, PlatformState.CONTRADICTORY, detail=str(stated))


def contradiction(claimed: Platform, image: Image) -> Platform | None:
    """The platform that the configuration of a child names, if it is of another system or architecture; else None.

    Words that no platform has contradict nothing, since runtimes choose by the index.
    """
    if image.kind is not Kind.MANIFEST or not image.entries:
        return None
    (stated,) = (entry.platform for entry in image.entries)
    return None if (stated.os, stated.architecture) == (claimed.os, claimed.architecture) else stated
