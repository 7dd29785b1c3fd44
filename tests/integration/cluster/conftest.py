"""A client of the API server that a test has as `api`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.cluster.client import ClusterClient, open_cluster
from tests.integration.cluster.api_server import ApiServer, write_kubeconfig


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    opened = await open_cluster("kubeconfig", str(write_kubeconfig(api, tmp_path)))
    yield opened
    await opened.close()
