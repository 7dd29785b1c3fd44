"""What kube-apiserver itself says of the webhook: its metrics have the names and labels that alerts and panels ask for.

A real Prometheus reads the API server of the test bed, and the chart's alerts fire when their cause comes.
"""

import asyncio
import contextlib
import math
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.api_client import ApiError
from testbed.chart import CHART
from testbed.control_plane import LOOPBACK, LocalCluster
from testbed.dashboard import API_SERVER, as_sent, panels
from testbed.debian_prometheus import (
    DebianPrometheus,
    firing,
    shortened,
    until,
    values,
)
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import pod
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

NAME = "pods.multiarch-webhook.multiarch-extender.io"
PREFIX = "apiserver_admission_webhook_"
FAIL_OPEN, CALLS_FAIL, SLOW = (
    firing(alert, name=NAME)
    for alert in ("MultiarchWebhookFailsOpen", "MultiarchWebhookCallsFail", "MultiarchWebhookSlow")
)


@asynccontextmanager
async def reading(
    session: aiohttp.ClientSession, program: Path, folder: Path, cluster: LocalCluster, service: ExtenderProcess
) -> AsyncIterator[DebianPrometheus]:
    """Prometheus, which reads the service and the API server; its rules look back over ten seconds.

    To the rules whatever earlier tests had the API server count is new at first, so that alerts may fire: the block
    begins when none does.
    """
    rules = folder / "rules.yaml"
    rules.write_text(shortened((CHART / "files" / "rules.yaml").read_text(), "10s"))
    target = service.operations_url.removeprefix("http://")
    with DebianPrometheus(program, folder, target, rules, cluster.apiserver_scraping()) as server:
        await until(session, server, 'sum_over_time(up{job="kube-apiserver"}[20s]) > 2', found=True)
        for alert in (FAIL_OPEN, CALLS_FAIL, SLOW):
            await until(session, server, alert, found=False)
        yield server


async def call(world: World, service: ExtenderProcess, policy: str, url: str = "", **webhook: Any) -> None:
    configuration = webhook_configuration(Mode.WEBHOOK, url or service.admission_url, service.authority)
    configuration["webhooks"][0] |= {"failurePolicy": policy, **webhook}
    await world.api.apply(configuration)


async def label_sets(world: World, metric: str) -> list[Mapping[str, str]]:
    lines = re.findall(rf"^{PREFIX}{metric}{{(.*)}} [0-9.e+]+$", await world.api.metrics(), re.MULTILINE)
    found = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines]
    return [labels for labels in found if labels["name"] == NAME]


@asynccontextmanager
async def reviewing(world: World) -> AsyncIterator[None]:
    where = await world.namespace()

    async def keep_on() -> None:
        for _ in range(10_000):
            with contextlib.suppress(ApiError):
                await world.review(pod("probe", world.images.multi, namespace=where))
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(keep_on()) for _ in range(4)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def has_number(session: aiohttp.ClientSession, server: DebianPrometheus, query: str) -> None:
    """Returns when the query has a number; a scrape that fails leaves it without one for a second."""
    await eventually(lambda: values(session, server, query), lambda found: any(map(math.isfinite, found)))


async def test_alerts_about_calls_that_fail_or_are_slow_fire_and_end(
    world: World, control_plane: LocalCluster, prometheus: Path, tmp_path: Path
) -> None:
    """A closed port under either failurePolicy; then one where each review takes the webhook's three seconds.

    The labels are those that the rules name, and each panel has data.
    """
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    async with (
        aiohttp.ClientSession() as session,
        reading(session, prometheus, tmp_path, control_plane, service) as server,
        reviewing(world),
    ):
        with socket.socket() as held:
            held.bind((LOOPBACK, 0))
            closed = f"https://{LOOPBACK}:{held.getsockname()[1]}"
            await call(world, service, "Ignore", closed)
            await until(session, server, FAIL_OPEN, found=True)
            await call(world, service, "Fail", closed)
            await until(session, server, CALLS_FAIL, found=True)
            await call(world, service, "Ignore")
        for alert in (FAIL_OPEN, CALLS_FAIL):
            await until(session, server, alert, found=False)
        for panel in (each for each in panels() if each.row == API_SERVER):
            for query in panel.queries:
                await has_number(session, server, as_sent(query, "30s"))
        with socket.create_server((LOOPBACK, 0), backlog=1024) as mute:
            url = f"https://{LOOPBACK}:{mute.getsockname()[1]}"
            await call(world, service, "Ignore", url, timeoutSeconds=3)
            await until(session, server, SLOW, found=True)
            await call(world, service, "Ignore")
            await until(session, server, SLOW, found=False)
    assert {labels["type"] for labels in await label_sets(world, "fail_open_count")} == {"admit"}
    # The API server may have counted denials (no_error) of earlier tests.
    assert "calling_webhook_error" in {labels["error_type"] for labels in await label_sets(world, "rejection_count")}
    assert {labels["type"] for labels in await label_sets(world, "admission_duration_seconds_count")} == {"admit"}
