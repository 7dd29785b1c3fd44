"""Pods that kube-scheduler alone would misplace, and a stream of them that survives an API server's outage."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from testbed.api_client import ApiError
from testbed.objects import KubernetesObject, pod
from tests.e2e.world import World

SOME = 15  # pods that are bound before the test breaks something
PACE_SECONDS = 0.03  # between two pods; it sets the load and synchronises nothing
PAUSE_SECONDS = 0.1
TRANSIENT = frozenset({429, 500, 503, 504})
TAKEN_SECONDS = 60.0


def leaning_to(architecture: str) -> KubernetesObject:
    """Returns part of a pod's spec: among otherwise equal nodes, kube-scheduler prefers this architecture."""
    preference = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": [architecture]}]}
    preferred = [{"weight": 100, "preference": preference}]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


@asynccontextmanager
async def steady_load(world: World, where: str, scheduler: str = "") -> AsyncIterator[list[str]]:
    """Creates pods in sequence during the block; yields the list of their names. After the block all are bound.

    They are amd64-only, arm64-only and multi-arch in turn, and the single-arch ones prefer nodes on which they do not
    run. A pod that the API server refuses, since it is down or still starting, is retried until it is accepted.
    """
    created: list[str] = []
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_create_steadily(world, where, scheduler, created, ending))
        await world.wait_all_bound(where, SOME)
        yield created
        ending.set()
    await world.wait_all_bound(where, len(created))


async def _create_steadily(world: World, where: str, scheduler: str, created: list[str], ending: asyncio.Event) -> None:
    named: KubernetesObject = {"schedulerName": scheduler} if scheduler else {}
    kinds = itertools.cycle(
        [
            (world.images.amd, {**named, **leaning_to("arm64")}),
            (world.images.arm, {**named, **leaning_to("amd64")}),
            (world.images.multi, named),
        ]
    )
    for number, (image, spec) in enumerate(kinds):
        if ending.is_set():
            return
        await _create(world, pod(f"load-{number}", image, namespace=where, spec=spec))
        created.append(f"load-{number}")
        await asyncio.sleep(PACE_SECONDS)


async def _create(world: World, manifest: KubernetesObject) -> None:
    async with asyncio.timeout(TAKEN_SECONDS):
        while True:
            try:
                await world.api.create(manifest)
            except ApiError as exc:
                if exc.status == 409:  # an earlier request succeeded, and only its response was lost
                    return
                if exc.status not in TRANSIENT:
                    raise
            except (aiohttp.ClientError, TimeoutError):
                pass
            else:
                return
            await asyncio.sleep(PAUSE_SECONDS)
