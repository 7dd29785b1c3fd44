"""A real Prometheus scrapes a real service: alerts fire when their condition comes, and end when it ends.

The rules are the chart's, with their times made short.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from testbed.chart import CHART
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import CHANGE_SECONDS, DebianPrometheus, find_prometheus, firing, shortened, until
from testbed.embedded_registry import EmbeddedRegistry
from tests.integration.service.caller import Caller, pod
from tests.integration.service.conftest import running_service


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
    (tmp_path / "rules.yaml").write_text(shortened((CHART / "files" / "rules.yaml").read_text(), "2s"))
    return tmp_path / "rules.yaml"


@pytest.mark.slow
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


@pytest.mark.slow
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
