"""Gated pods while things break: none stands wrongly, and none is held for ever.

Every pod leans to an architecture on which its image does not run, so one that is let go unexamined stands wrongly.
A leader that is killed alone: test_gate_outages.py. What a single request meets: tests/integration/gates.
"""

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.shipped_files import Mode
from testbed.tcp_proxy import open_tcp_proxy
from tests.e2e.gates import create_gated, observed, proxied_account, start_controller
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

MODE = "gates, while things break"
HELD = 50


async def leader_of(*services: ExtenderProcess) -> ExtenderProcess:
    async def leading() -> list[ExtenderProcess]:
        return [each for each in services if "leading" in await each.readiness()]

    return (await eventually(leading))[0]


async def test_standby_takes_over_and_hands_over(world: World) -> None:
    """Of two replicas the leader is killed while pods wait; then the other is replaced in good order."""
    await world.create_both(6, cpu="256")
    first, second = await start_controller(world), await start_controller(world)
    where, images = await world.namespace(), world.images
    late, never = images.unpushed(), images.unpushed()
    leader = await leader_of(first, second)
    other = second if leader is first else first
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await create_gated(world, where, HELD, [late])
            await releases.holds(HELD)
            await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
            leader.kill()
            images.push(late, "arm64")
            killed = time.monotonic()
            await releases.are(HELD)
            world.figure(f"gates, leader of two killed: first let go {min(releases.at.values()) - killed:.2f} s later")
            third = await start_controller(world)
            await create_gated(world, where, 20, [never], prefix="late")
            await create_gated(world, where, 20, [images.amd, images.arm], prefix="before")
            await asyncio.to_thread(other.terminate)
            await create_gated(world, where, 20, [images.amd, images.arm], prefix="after")
            await releases.are(HELD + 40)
            assert third.is_running
            assert len(releases.held) == 20
            images.push(never, "arm64")
            await world.wait_all_bound(where, HELD + 60)
    await world.assert_placed_rightly(MODE, where, HELD + 60)


async def test_cut_off_from_the_api_server(world: World, control_plane: LocalCluster, tmp_path: Path) -> None:
    """For longer than the lease lasts, while etcd's history is compacted: the pods go once it is reached again."""
    await world.create_both(6, cpu="256")
    async with open_tcp_proxy(urlsplit(world.api.server).port or 443) as proxy:
        account = await proxied_account(world, Mode.WEBHOOK, proxy, tmp_path)
        service = await start_controller(world, f"cluster={account}")
        where, late = await world.namespace(), world.images.unpushed()
        async with observed(world, where) as releases:
            with world.default_scheduler(None):
                await create_gated(world, where, HELD, [late])
                await releases.holds(HELD)
                await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
                await leader_of(service)
                proxy.refuse()
                world.images.push(late, "arm64")
                await eventually(service.readiness, lambda found: "leading" not in found)
                await create_gated(world, where, HELD, [world.images.amd], prefix="meanwhile")
                control_plane.compact_etcd()
                assert releases.at == {}
                proxy.accept()
                await world.wait_all_bound(where, 2 * HELD)
    await world.assert_placed_rightly(MODE, where, 2 * HELD)


async def test_cut_off_from_the_registry(world: World) -> None:
    """Pods whose registry refuses connections are held with an event, and go when it answers again."""
    await world.create_both(6, cpu="256")
    async with open_tcp_proxy(urlsplit(world.registry.url).port or 80) as proxy:
        host, reached = f"127.0.0.1:{proxy.port}", world.registry.host
        hosts = f"['{host}','{reached}']"
        await start_controller(world, f"registry.plain_http={hosts}", f"registry.allow={hosts}")
        where, image = await world.namespace(), world.images.fresh("arm64")
        behind = image.replace(reached, host)
        world.images.architectures[behind] = frozenset({"arm64"})
        proxy.refuse()
        async with observed(world, where) as releases:
            with world.default_scheduler(None):
                await create_gated(world, where, HELD, [behind])
                assert behind in await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
                assert releases.at == {}
                proxy.accept()
                await world.wait_all_bound(where, HELD)
    await world.assert_placed_rightly(MODE, where, HELD)
