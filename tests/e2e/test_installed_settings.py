"""Commands beside an installation of the chart decide by its settings."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject, pod
from tests.e2e.examined_installation import open_installation

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]
ARCHITECTURE = "kubernetes.io/arch"
FIRST = {"config": {"admission": {"node_affinity": "both", "tolerations": []}}}


async def create_patched(api: ApiClient, manifest: KubernetesObject) -> None:
    """Creates the pod again until the API server calls the webhook, and it knows the image in time."""
    async with asyncio.timeout(30):
        while ARCHITECTURE not in json.dumps((await api.create(manifest))["spec"].get("nodeSelector")):
            await api.delete("Pod", manifest["metadata"]["name"])


@pytest.mark.parametrize("values", [{}, FIRST], ids=["as shipped", "other settings"])
async def test_of_a_pod_that_the_webhook_has_patched_explain_shows_no_change(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path, values: Mapping[str, Any]
) -> None:
    """Neither what it would take away, nor what it would add once more."""
    async with open_installation(api, control_plane, tmp_path, values) as installation:
        installation.registry.add_manifest("team/web", "1", "linux/amd64")
        try:
            await create_patched(api, pod("explained", f"{installation.registry.host}/team/web:1"))
            said = await installation.run("explain", "explained", "-n", "default", "-o", "json")
        finally:
            await api.delete("Pod", "explained")
    [told] = json.loads(said.output)
    assert told["webhook"]["patch"] == []
    assert ARCHITECTURE in told["added"]
