"""A real Prometheus scrapes a real service: alerts fire when their condition comes, and end when it ends.

The rules are the chart's, with their times made short.
"""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extender.demo.registry import EmbeddedRegistry
from testbed.chart import CHART
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import DebianPrometheus, find_prometheus
from tests.integration.service.caller import Caller, pod
from tests.integration.service.conftest import running_service

CHANGE_SECONDS = 20.0


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_prometheus()
    except ProgramMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The chart's rules, which look back over two seconds and wait for none."""
    text = (CHART / "files" / "rules.yaml").read_text()
    text = re.sub(r"\[\d+[mhd]\]", "[2s]", re.sub(r"    for: \d+m\n", "", text))
    (tmp_path / "rules.yaml").write_text(text)
    return tmp_path / "rules.yaml"


async def values(session: aiohttp.ClientSession, server: DebianPrometheus, query: str) -> list[float]:
    """The values of a query; none before the server answers."""
    try:
        async with session.get(f"{server.url}/api/v1/query", params={"query": query}) as response:
            if response.status != 200:
                return []
            answer: dict[str, Any] = await response.json()
    except aiohttp.ClientConnectionError:
        return []
    return [float(sample["value"][1]) for sample in answer["data"]["result"]]


async def until(session: aiohttp.ClientSession, server: DebianPrometheus, query: str, *, found: bool) -> None:
    """Returns when the query has a result, or has none any more."""
    async with asyncio.timeout(CHANGE_SECONDS):
        while bool(await values(session, server, query)) != found:
            await asyncio.sleep(0.1)


def firing(alert: str) -> str:
    """The query of an alert that fires."""
    return f'ALERTS{{alertname="{alert}",alertstate="firing"}}'


async def test_an_alert_fires_while_no_replica_answers(prometheus: Path, rules: Path, tmp_path: Path) -> None:
    """It ends when one answers again."""
    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        async with running_service() as caller:
            target = caller.service.operations_url.removeprefix("http://")
            server = stack.enter_context(DebianPrometheus(prometheus, tmp_path, target, rules))
            await until(session, server, "multiarch_build_info", found=True)
            await until(session, server, firing("MultiarchDown"), found=False)
        await until(session, server, firing("MultiarchDown"), found=True)
        async with running_service(f"operations.listen={target}"):
            await until(session, server, firing("MultiarchDown"), found=False)


async def test_an_alert_fires_while_pods_are_let_through_with_unknown_images(
    prometheus: Path, rules: Path, tmp_path: Path, registry: EmbeddedRegistry
) -> None:
    """The registry lacks the image. The alert ends when no more such pods come."""
    async with aiohttp.ClientSession() as session, running_service(plain_http=registry.host) as caller:
        target = caller.service.operations_url.removeprefix("http://")
        with DebianPrometheus(prometheus, tmp_path, target, rules) as server:
            await until(session, server, "multiarch_build_info", found=True)
            reviews = asyncio.create_task(_keep_reviewing(caller, f"{registry.host}/missing:1"))
            try:
                await until(session, server, firing("MultiarchAdmissionsUnresolved"), found=True)
            finally:
                reviews.cancel()
                await asyncio.gather(reviews, return_exceptions=True)
            await until(session, server, firing("MultiarchAdmissionsUnresolved"), found=False)


async def _keep_reviewing(caller: Caller, image: str) -> None:
    for _ in range(int(CHANGE_SECONDS / 0.05)):
        await caller.review(pod(image))
        await asyncio.sleep(0.05)
