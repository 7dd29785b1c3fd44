"""The process: starts a service from a configuration, and stops it without losing a request."""

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import msgspec
import structlog

from extender import __version__
from extender.background import in_background
from extender.config.tree import Config
from extender.drift.drift_watch import DriftWatch
from extender.fetcher.fetcher_client import open_fetcher
from extender.metrics import gauge
from extender.resolver.pod_resolver import PodResolver
from extender.server.operations import Check, CheckResult
from extender.service.canaries import canary_of
from extender.service.cluster_view import ClusterView, open_cluster_view
from extender.service.endpoints import needs_pending_pods
from extender.service.gate_opening import open_gates
from extender.service.listeners import Listeners
from extender.service.resolving import OpenSources, open_pod_resolver_of
from extender.service.self_managed import with_managed_files
from extender.store.url import without_password


@contextlib.asynccontextmanager
async def open_drift_watch(config: Config, cluster_view: ClusterView, pod_resolver: PodResolver) -> AsyncIterator[None]:
    """Tells of images in use that lose or gain a platform, beside the context; nothing without a cluster."""
    client, nodes = cluster_view.client, cluster_view.nodes
    if client is None or nodes is None:
        yield
        return
    watch = DriftWatch(
        client,
        pod_resolver,
        nodes,
        events=cluster_view.events if config.drift.events else None,
        clock=time.monotonic,
    )
    async with in_background(watch.run(), "drift"):
        yield


# Twice what all listeners accept, and few enough for what still closes each of them in a child process.
_MOST = 4_096


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files, often 1,024, towards the hard one. Go's programs do so at their start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # a limit that cannot be raised is no reason not to serve
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


log = structlog.get_logger()

BUILD_INFO = gauge("multiarch_build_info", "Always 1; the version is the label.", "version", (__version__,))


_UNREAD = "the files for them are not read yet"


class Service(msgspec.Struct, frozen=True):
    """A running service. `urls` has the base URL of each listener by name, empty for one that is off."""

    urls: Mapping[str, str]

    @property
    def scheduler_url(self) -> str:
        """The base URL of the scheduler verbs."""
        return self.urls["scheduler"]

    @property
    def admission_url(self) -> str:
        """The base URL of the webhook."""
        return self.urls["admission"]

    @property
    def operations_url(self) -> str:
        """The base URL of health checks and metrics."""
        return self.urls["operations"]


@contextlib.asynccontextmanager
async def open_service(config: Config, cluster_view: ClusterView, open_sources: OpenSources) -> AsyncIterator[Service]:
    """The whole service, which answers until the context is left; leaving drains it within the grace period.

    Raises:
        ConfigError: an address cannot be bound, or a file of the configuration cannot be used.
    """
    BUILD_INFO[__version__].set(1)
    canary = canary_of(config, cluster_view)
    async with (
        open_sources(config.registry) as sources,
        open_pod_resolver_of(sources, config, cluster_view) as pod_resolver,
        cluster_view.watching(pod_resolver.warm if needs_pending_pods(config) else None),
        in_background(canary.run() if canary else None, "canaries"),
        open_gates(config, cluster_view, pod_resolver) as gates,
        open_drift_watch(config, cluster_view, pod_resolver),
    ):
        listeners = Listeners(config)
        try:
            await sources.check()
            ready: Mapping[str, Check] = {
                "registries": lambda: CheckResult(ok=sources.is_ready, detail="" if sources.is_ready else _UNREAD),
                **cluster_view.ready_checks(),
                **({"gates": gates.check} if gates else {}),
            }
            can_gate = gates.can_gate if gates else lambda: False
            seen: Mapping[str, Check] = {"canary": canary.check} if canary else {}
            urls = await listeners.open(pod_resolver, cluster_view, can_gate, ready, seen)
            log.info("service.started", version=__version__, config=_shown(config))
            yield Service(urls)
            await listeners.drain()
        finally:
            await listeners.close()


async def run_service(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Before all is open either signal ends the opening in order."""
    opened, stop = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_serve(config, opened, stop))

    def end() -> None:
        if not (stop.is_set() or opened.is_set()):
            serving.cancel()
        stop.set()

    _on_stop(end)
    try:
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    log.info("service.stopped")


async def _serve(config: Config, opened: asyncio.Event, stop: asyncio.Event) -> None:
    raise_descriptor_limit()
    async with (
        open_cluster_view(config) as cluster_view,
        with_managed_files(config, cluster_view.client) as config_with_files,
        open_service(config_with_files, cluster_view, partial(open_fetcher, log_level=config.log.level)),
    ):
        opened.set()
        await stop.wait()
        log.info("service.stopping", grace_seconds=config.shutdown.grace_seconds)


async def wait_for_stop() -> None:
    """Returns when SIGTERM or SIGINT arrives; from this call on neither signal has another effect."""
    stop = asyncio.Event()
    _on_stop(stop.set)
    await stop.wait()


def _on_stop(call: Callable[[], None]) -> None:
    """Has `call` called for each SIGTERM and SIGINT, which have no other effect from then on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)


def _shown(config: Config) -> object:
    """The settings as they may be logged."""
    shown = msgspec.to_builtins(config)
    shown["cache"]["url"] = without_password(config.cache.url)
    return shown
