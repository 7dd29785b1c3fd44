"""The whole service on a cluster that a test plays, and what its readiness says."""

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.service.cluster_view import open_cluster_view
from extender.service.compose import open_service
from testbed.eventually import eventually
from tests.integration.cluster.api_server import (
    ApiServer,
    write_kubeconfig,
)
from tests.integration.service.caller import Caller


@asynccontextmanager
async def service_in(
    api: ApiServer, folder: Path, listen: str, *more: str, registries: Sequence[str] = ()
) -> AsyncIterator[Caller]:
    """The whole service on that cluster, with `scheduler.listen` and more settings as given."""
    settings = [
        f"cluster={write_kubeconfig(api, folder)}",
        f"scheduler.listen='{listen}'",
        "admission.listen=127.0.0.1:0",
        "admission.tls=null",
        "operations.listen=127.0.0.1:0",
        "shutdown.grace_seconds=0.2",
        "cache.url='memory:'",
    ]
    plain = [f"registry.plain_http={list(registries)}", f"registry.allow={list(registries)}"] if registries else []
    config = load_config(None, [*settings, *plain, *more])
    async with (
        aiohttp.ClientSession() as session,
        open_cluster_view(config) as cluster_view,
        open_service(config, cluster_view, open_local_sources) as service,
    ):
        yield Caller(session, service)


async def checks(caller: Caller, path: str) -> tuple[int, dict[str, str]]:
    async with caller.session.get(f"{caller.service.operations_url}{path}?verbose") as response:
        *lines, _ = (await response.text()).splitlines()
        return response.status, {line[3:].split()[0]: line[:3] for line in lines}


async def until_ready(caller: Caller) -> dict[str, str]:
    found = await eventually(lambda: checks(caller, "/readyz"), lambda found: found[0] == 200)
    return found[1]


def write_pull_secret(api: ApiServer, host: str) -> None:
    """The secret `pull` in the namespace `default`, which opens the registry's images to ann."""
    login = {"auths": {host: {"auth": base64.b64encode(b"ann:secret").decode()}}}
    api.put(
        "/api/v1/namespaces/default/secrets",
        {
            "metadata": {"name": "pull", "namespace": "default"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()},
        },
    )


HOLDING = ("admission.unknown=gate", "admission.node_affinity=required", "admission.wait_seconds=0")
