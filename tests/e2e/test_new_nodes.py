"""Nodes that join while pods wait for them, and that kube-scheduler sees before the service does."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testbed.shipped_files import SECOND_SCHEDULER, Mode
from testbed.tcp_proxy import open_tcp_proxy
from tests.e2e.gates import proxied_account
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

NEW = 40


async def seconds_to_bind(world: World, prefix: str) -> float:
    """How long it takes from the making of forty nodes until forty pods, each as large as a node, have one."""
    where = await world.namespace()
    names = await world.create_pods(where, NEW, world.images.amd, scheduler=SECOND_SCHEDULER, cpu="1")
    for name in names:
        await world.wait_refused(where, name)
    began = time.monotonic()
    await world.create_nodes("amd64", NEW, cpu="1", prefix=prefix)
    bound = await world.wait_all_bound(where, NEW)
    seconds = time.monotonic() - began
    assert len(set(bound.values())) == NEW
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, NEW)
    return seconds


@pytest.mark.parametrize("late_seconds", [0.0, 0.5])
async def test_every_pod_is_bound_when_forty_nodes_join_at_once(
    world: World, tmp_path: Path, late_seconds: float
) -> None:
    """Also where the service sees them half a second later: nobody is an error for a node that is not in view."""
    async with open_tcp_proxy(urlsplit(world.api.server).port or 443, answer_seconds=late_seconds) as proxy:
        account = await proxied_account(world, Mode.SECOND, proxy, tmp_path)
        service = await world.start_service(f"cluster={account}", "admission.node_affinity=none", admission=False)
        with world.second_scheduler(None):
            alone = await seconds_to_bind(world, "alone")
        await world.warm(service, await world.namespace(), world.images.amd)
        with world.second_scheduler(service):
            ours = await seconds_to_bind(world, "ours")
        errors = await service.metric("multiarch_requests_total", endpoint="filter", outcome="error")
        refusals = await service.metric("multiarch_removed_nodes_total", endpoint="filter", verdict="not-in-view")
    world.figure(
        f"{NEW} nodes at once, seen {late_seconds:g} s late: all pods bound in {ours:.1f} s, without an extender in "
        f"{alone:.1f} s; {refusals:.0f} times a node was not in view"
    )
    assert errors == 0
    assert refusals > 0 or not late_seconds
