"""The whole service in this process, and a caller that acts as kube-scheduler and kube-apiserver."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from extender.cluster.views import WatchedNodes
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.service.cluster_view import ClusterView, open_cluster_view
from extender.service.compose import open_service
from testbed.embedded_registry import EmbeddedRegistry
from testbed.machines import running_machine
from tests.integration.cluster.api_server import ApiServer, namespace, node, serve_api, write_kubeconfig
from tests.integration.service.caller import AMD64, ARM64, Caller, Json, pod

StartService = Callable[..., Awaitable[Caller]]
HOLDING = ("admission.unknown=gate", "admission.node_affinity=required", "admission.wait_seconds=0")

_SETTINGS = (
    "cluster=none",
    "scheduler.listen=127.0.0.1:0",
    "admission.listen=127.0.0.1:0",
    "admission.tls=null",
    "operations.listen=127.0.0.1:0",
    "shutdown.grace_seconds=0.2",
    "cache.url='memory:'",
)
_PATIENT = ("scheduler.wait_seconds=10", "admission.wait_seconds=10")


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    async with EmbeddedRegistry() as opened:
        yield opened


@asynccontextmanager
async def running_service(
    *settings: str, registries: Sequence[str] = (), nodes: WatchedNodes | None = None
) -> AsyncIterator[Caller]:
    """Runs a service on loopback that may connect to these registries. `nodes` are in view without a cluster."""
    plain = [f"registry.plain_http={[*registries]}", f"registry.allow={['*', *registries]}"] if registries else []
    config = load_config(None, [*_SETTINGS, *plain, *settings])
    machine = running_machine()
    sources = partial(open_local_sources, machine=machine)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        open_cluster_view(config, machine) as view,
        open_service(config, ClusterView(nodes) if nodes else view, sources, machine) as service,
    ):
        yield Caller(session, service)


@pytest.fixture
async def start_service() -> AsyncIterator[StartService]:
    """Starts services that take their time, as `running_service` does; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(*settings: str, plain_http: str = "", nodes: WatchedNodes | None = None) -> Caller:
            registries = [plain_http] if plain_http else []
            service = running_service(*_PATIENT, *settings, registries=registries, nodes=nodes)
            return await stack.enter_async_context(service)

        yield start


class World:
    """A registry with an image of each kind, and services that may ask it."""

    def __init__(self, registry: EmbeddedRegistry, start: StartService) -> None:
        self.registry = registry
        self.host = registry.host
        self._start = start

    async def serve(self, *settings: str, nodes: object = None) -> Caller:
        """A service with these settings; `nodes` stand in for its view of the cluster's."""
        return await self._start(*settings, plain_http=self.host, nodes=nodes)

    def image(self, name: str) -> str:
        return f"{self.host}/{name}"

    def pod(self, *images: str, **metadata: object) -> Json:
        return pod(*map(self.image, images), **metadata)


@pytest.fixture
async def world(registry: EmbeddedRegistry, start_service: StartService) -> World:
    registry.add_index("multi", "1", [AMD64, ARM64])
    registry.add_manifest("amd", "1", AMD64)
    registry.add_manifest("amd", "2", AMD64)
    registry.add_manifest("arm", "1", ARM64)
    registry.add_artifact("chart", "1")
    return World(registry, start_service)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        server.put("/api/v1/nodes", node("a"))
        server.put("/api/v1/namespaces", namespace("shop"))
        yield server


@dataclass
class Cluster:
    """A cluster that a test plays, a registry, and services that know both."""

    api: ApiServer
    registry: EmbeddedRegistry
    folder: Path

    def service(
        self, *settings: str, listen: str = "", registries: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Caller]:
        """A service with `scheduler.listen` and other settings, and perhaps other registries."""
        kubeconfig = write_kubeconfig(self.api, self.folder)
        hosts = registries or [self.registry.host]
        return running_service(f"cluster={kubeconfig}", f"scheduler.listen='{listen}'", *settings, registries=hosts)


@pytest.fixture
def cluster(api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path) -> Cluster:
    return Cluster(api, registry, tmp_path)
