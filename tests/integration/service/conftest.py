"""The whole service in this process, and a caller that acts as kube-scheduler and kube-apiserver."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from extender.cluster.views import WatchedNodes
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.service.cluster_view import ClusterView
from extender.service.compose import open_service
from testbed.embedded_registry import EmbeddedRegistry
from tests.integration.cluster.api_server import ApiServer, namespace, node, serve_api
from tests.integration.service.caller import Caller

StartService = Callable[..., Awaitable[Caller]]

_SETTINGS = (
    "scheduler.listen=127.0.0.1:0",
    "scheduler.wait_seconds=10",
    "admission.listen=127.0.0.1:0",
    "admission.tls=null",
    "admission.wait_seconds=10",
    "operations.listen=127.0.0.1:0",
    "shutdown.grace_seconds=0.2",
    "cache.url='memory:'",
)


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    async with EmbeddedRegistry() as opened:
        yield opened


@asynccontextmanager
async def running_service(
    *settings: str, plain_http: str = "", nodes: WatchedNodes | None = None
) -> AsyncIterator[Caller]:
    """Runs a service on loopback.

    Each argument is a `path=value` setting; `plain_http` is a registry that it may connect to.
    """
    plain = [f"registry.plain_http=['{plain_http}']", f"registry.allow=['*', '{plain_http}']"] if plain_http else []
    config = load_config(None, [*_SETTINGS, *plain, *settings])
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        open_service(config, ClusterView(nodes), open_local_sources) as service,
    ):
        yield Caller(session, service)


@pytest.fixture
async def start_service() -> AsyncIterator[StartService]:
    """Starts services as `running_service` does; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(*settings: str, plain_http: str = "", nodes: WatchedNodes | None = None) -> Caller:
            return await stack.enter_async_context(running_service(*settings, plain_http=plain_http, nodes=nodes))

        yield start


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        server.put("/api/v1/nodes", node("a"))
        server.put("/api/v1/namespaces", namespace("shop"))
        yield server
