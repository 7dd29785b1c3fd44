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
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import (
    CHANGE_SECONDS,
    DebianPrometheus,
    find_prometheus,
    firing,
    shortened,
    until,
    values,
)
from testbed.extender_process import ExtenderProcess
from testbed.objects import pod
from testbed.processes import free_port
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.running import skip
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

NAME = "pods.multiarch-webhook.multiarch-extender.io"
PREFIX = "apiserver_admission_webhook_"
FAIL_OPEN, CALLS_FAIL, SLOW = (
    firing(alert, name=NAME)
    for alert in ("MultiarchWebhookFailsOpen", "MultiarchWebhookCallsFail", "MultiarchWebhookSlow")
)


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_prometheus()
    except ProgramMissing as exc:
        skip(str(exc))


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
    """Has the API server call this URL, or else the service, and go on without an answer or not."""
    configuration = webhook_configuration(Mode.WEBHOOK, url or service.admission_url, service.authority)
    configuration["webhooks"][0] |= {"failurePolicy": policy, **webhook}
    await world.api.apply(configuration)


async def label_sets(world: World, metric: str) -> list[Mapping[str, str]]:
    """The labels of each series of the metric about our webhook, as the API server tells them."""
    lines = re.findall(rf"^{PREFIX}{metric}{{(.*)}} [0-9.e+]+$", await world.api.metrics(), re.MULTILINE)
    found = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines]
    return [labels for labels in found if labels["name"] == NAME]


@asynccontextmanager
async def reviewing(world: World) -> AsyncIterator[None]:
    """Has pods reviewed, four at a time, until the block ends."""
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
    async with asyncio.timeout(CHANGE_SECONDS):
        while not any(math.isfinite(number) for number in await values(session, server, query)):
            await asyncio.sleep(0.1)


async def test_alerts_about_calls_that_fail_fire_and_end(
    world: World, control_plane: LocalCluster, prometheus: Path, tmp_path: Path
) -> None:
    """A closed port under either failurePolicy; the labels are those that the rules name, and each panel has data."""
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    closed = f"https://{LOOPBACK}:{free_port()}"
    async with (
        aiohttp.ClientSession() as session,
        reading(session, prometheus, tmp_path, control_plane, service) as server,
        reviewing(world),
    ):
        await call(world, service, "Ignore", closed)
        await until(session, server, FAIL_OPEN, found=True)
        await call(world, service, "Fail", closed)
        await until(session, server, CALLS_FAIL, found=True)
        await call(world, service, "Ignore")
        await until(session, server, FAIL_OPEN, found=False)
        await until(session, server, CALLS_FAIL, found=False)
        for panel in (each for each in panels() if each.row == API_SERVER):
            for query in panel.queries:
                await has_number(session, server, as_sent(query, "30s"))
    assert {labels["type"] for labels in await label_sets(world, "fail_open_count")} == {"admit"}
    # The API server may have counted denials (no_error) of earlier tests.
    assert "calling_webhook_error" in {labels["error_type"] for labels in await label_sets(world, "rejection_count")}


async def test_the_alert_about_slow_reviews_fires_and_ends(
    world: World, control_plane: LocalCluster, prometheus: Path, tmp_path: Path
) -> None:
    """Whatever is called takes connections and says nothing, so that each review takes the webhook's three seconds."""
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    async with (
        aiohttp.ClientSession() as session,
        reading(session, prometheus, tmp_path, control_plane, service) as server,
        reviewing(world),
    ):
        with socket.create_server((LOOPBACK, 0), backlog=1024) as mute:
            url = f"https://{LOOPBACK}:{mute.getsockname()[1]}"
            await call(world, service, "Ignore", url, timeoutSeconds=3)
            await until(session, server, SLOW, found=True)
            await call(world, service, "Ignore")
            await until(session, server, SLOW, found=False)
    assert {labels["type"] for labels in await label_sets(world, "admission_duration_seconds_count")} == {"admit"}
