"""An API server on loopback, which files of tests fill for themselves, and a client of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.cluster.client import ClusterClient, open_cluster
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, serve_api, write_kubeconfig


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    opened = await open_cluster(
        "kubeconfig", str(write_kubeconfig(api, tmp_path)), clock=asyncio.get_running_loop().time
    )
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()
