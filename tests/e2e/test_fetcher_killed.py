"""The process that asks registries is killed again and again while pods of new images are placed."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PODS, PODS_OF_AN_IMAGE = 2_000, 10
EVERY_SECONDS = 10.0
KINDS = (("amd64",), ("arm64",), ("amd64", "arm64"))


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def kill_children(pid: int, killed: list[int]) -> None:
    """Kills the children of a process now and every ten seconds until cancelled."""
    while True:
        for child in children_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                killed.append(child)
        await asyncio.sleep(EVERY_SECONDS)


async def test_pods_are_placed_rightly_while_the_fetcher_is_killed(world: World) -> None:
    """None is misplaced, and all are bound; no other process of the service ends."""
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 20, cpu="64")
    service = await world.start_service(mode=Mode.SECOND)
    await world.register_webhook(service, mode=Mode.SECOND)
    where = await world.namespace(second=True)
    killed: list[int] = []
    killing = asyncio.create_task(kill_children(service.pid, killed))
    with world.scheduler(Mode.SECOND, service):
        for number in range(PODS // PODS_OF_AN_IMAGE):
            image = world.images.fresh(*KINDS[number % len(KINDS)])
            await world.create_pods(where, PODS_OF_AN_IMAGE, image, prefix=f"pods-{number}", cpu="10m")
        await world.wait_all_bound(where, PODS, 300)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert len(set(killed)) >= 2
    await world.assert_placed_rightly(f"second scheduler, fetcher killed {len(killed)} times", where, PODS)
