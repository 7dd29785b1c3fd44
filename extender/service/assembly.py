"""The assembly: from a Config to running listeners, and back down again without losing a request."""

import asyncio
import contextlib
import gc
import hashlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from extender import __version__
from extender.config.checks import is_loopback, parse_listen
from extender.config.tree import Config, TlsConfig
from extender.credentials.operator_keyring import open_operator_keyring
from extender.credentials.pull_secrets import PullSecrets
from extender.errors import ConfigError
from extender.images.platform import Compatibility, normalize_platform, parse_platform
from extender.metrics import gauge
from extender.outlets.admission import PodAdmission
from extender.outlets.pod_resolver import PodResolver
from extender.outlets.scheduler import SchedulerVerbs
from extender.placement.mutation import AdmissionPolicy
from extender.placement.policy import Policy
from extender.registry.addresses import AddressGuard
from extender.registry.auth import Authenticator
from extender.registry.client import RegistryClient
from extender.registry.mirrors import HostsDirectory
from extender.registry.session import open_session
from extender.resolver.persistence import Persistence
from extender.resolver.resolver import Resolver
from extender.server.listener import Listener, open_listener
from extender.server.operations import CheckResult, operations_app
from extender.server.routes import Route, route_server
from extender.server.tls import TlsFiles
from extender.service.allocator import keep_freed_memory
from extender.service.cluster_view import ClusterView, NoCluster, open_watched_cluster
from extender.store.url import default_store_url, open_store, without_password

log = structlog.get_logger()

BUILD_INFO = gauge("multiarch_build_info", "Always 1; the version is the label.", "version", (__version__,))

# 5,000 nodes (the largest cluster Kubernetes supports) of up to 25 KiB each: a node is 8-15 KB of JSON, most of it
# status.images (50 images of 5 names at most), and labels and annotations vary.
SCHEDULER_BODY_BYTES = 5_000 * 25 * 1024
# etcd refuses objects over 1.5 MiB by default, a review holds two of them (object and oldObject) and some envelope.
ADMISSION_BODY_BYTES = 8 * 1024 * 1024
FILE_CHECK_SECONDS = 5.0
LOAD_SECONDS = 0.5  # of the start that the store may take; the rest is loaded while we answer
CREDENTIAL_KEY_BYTES = 32
SETTLE_SECONDS = 0.1


class Service(msgspec.Struct, frozen=True):
    """A running service: the base URLs that are served, empty for a listener that is off.

    `is_loaded` tells whether all that the store keeps is in memory.
    """

    scheduler_url: str
    admission_url: str
    operations_url: str
    is_loaded: Callable[[], bool] = lambda: True


class _Draining:
    """Whether the end has begun: readiness fails, and answers close their connections."""

    def __init__(self) -> None:
        self.begun = False

    def check(self) -> CheckResult:
        return CheckResult(ok=not self.begun, detail="shutting down" if self.begun else "")


@contextlib.asynccontextmanager
async def open_pod_resolver(config: Config, cluster_view: ClusterView) -> AsyncIterator[PodResolver]:
    """What is known of images, over a registry session of its own that is closed at the end.

    Raises:
        ConfigError: a file of the configuration cannot be used, or a value of it is none that it can be.
    """
    registry, cache = config.registry, config.cache
    credential_key = _credential_key(cache.key_file)
    guard = AddressGuard(allow=registry.allow, deny=registry.deny, private_addresses=registry.private_addresses)
    mirrors = HostsDirectory(registry.hosts_directory, ca_files=registry.ca_files) if registry.hosts_directory else None
    url = cache.url or default_store_url(os.environ)
    store = open_store(url, size=cache.size, stale_seconds=cache.stale_seconds)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(ca_files=registry.ca_files, guard=guard))
        keyring = await stack.enter_async_context(
            open_operator_keyring(
                docker_config=registry.docker_config,
                plugin_config=registry.credential_providers.config,
                plugin_dir=registry.credential_providers.bin_dir,
                clouds=registry.clouds,
                environment=os.environ,
                key=credential_key,
                clock=time.monotonic,
                wall_clock=time.time,
            )
        )
        client = RegistryClient(
            session,
            authenticator=Authenticator(
                session, timeout_seconds=registry.timeout_seconds, clock=time.monotonic, wall_clock=time.time
            ),
            timeout_seconds=registry.timeout_seconds,
            concurrency_per_host=registry.concurrency_per_host,
            plain_http=frozenset(registry.plain_http),
            mirrors=mirrors,
            mirror_credentials=keyring.load,  # the operator's alone: what a mirror shows is shown to every pod
            guard=guard,
        )
        if mirrors:
            await stack.enter_async_context(_in_background(mirrors.watch(FILE_CHECK_SECONDS)))
        resolver = Resolver(
            client,
            size=cache.size,
            tag_seconds=cache.tag_seconds,
            always_seconds=registry.always_seconds,
            stale_seconds=cache.stale_seconds,
            clock=time.monotonic,
            persistence=Persistence(store, persist_private=bool(cache.key_file), clock=time.monotonic),
        )
        stack.push_async_callback(resolver.close)
        await resolver.load(LOAD_SECONDS)
        pull_secrets = (
            PullSecrets(cluster_view.secrets, key=credential_key, clock=time.monotonic)
            if registry.pull_secrets and cluster_view.secrets
            else None
        )
        yield PodResolver(
            resolver,
            keyring,
            policy_of(config),
            cluster_view.namespace_annotations,
            cluster_view.look_at_pending_pods,
            pull_secrets,
        )


def _credential_key(file: str) -> bytes:
    """What keys the names of credentials: the file's bytes as 32, or 32 of this process alone."""
    if not file:
        return secrets.token_bytes(CREDENTIAL_KEY_BYTES)
    try:
        content = Path(file).read_bytes()
    except OSError as exc:
        raise ConfigError(f"cache.key_file: {file}: {exc.strerror}; give a file of random bytes") from exc
    if len(content) < CREDENTIAL_KEY_BYTES:
        raise ConfigError(
            f"cache.key_file: {file} holds {len(content)} bytes; {CREDENTIAL_KEY_BYTES} or more are needed"
        )
    return hashlib.sha256(content).digest()


@contextlib.asynccontextmanager
async def _in_background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_cluster_view(config: Config) -> AsyncIterator[ClusterView]:
    """The cluster that the configuration names, or none.

    Raises:
        ConfigError: there is no such cluster, or its configuration cannot be used.
    """
    cluster = config.cluster
    if cluster.mode == "none":
        yield NoCluster()
        return
    opened = open_watched_cluster(cluster.kubeconfig, cluster.context, config.placement.level_label)
    async with opened as cluster_view:
        yield cluster_view


@contextlib.asynccontextmanager
async def open_service(config: Config, cluster_view: ClusterView) -> AsyncIterator[Service]:
    """The whole service, answering until the context is left; leaving drains it within the grace period.

    Raises:
        ConfigError: an address cannot be bound, or a file of the configuration cannot be used.
    """
    draining = _Draining()
    BUILD_INFO[__version__].set(1)
    async with (
        open_pod_resolver(config, cluster_view) as pod_resolver,
        cluster_view.watching(pod_resolver.warm if _needs_pending_pods(config) else None),
    ):
        opener = _Opener(config, draining)
        try:
            service = await opener.open(pod_resolver, cluster_view)
            log.info("service.started", version=__version__, config=_shown(config))
            yield service
        finally:
            await opener.close()


async def run_service(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    async with (
        open_cluster_view(config) as cluster_view,
        open_service(config, cluster_view) as service,
        _in_background(settle_down(cluster_view, service.is_loaded)),
    ):
        await wait_for_stop()
        log.info("service.stopping", grace_seconds=config.shutdown.grace_seconds)
    log.info("service.stopped")


async def settle_down(cluster_view: ClusterView, is_loaded: Callable[[], bool]) -> None:
    """Once all that must be known is: what start-up needed has been given back, and what it made will stay."""
    ready = cluster_view.ready_checks().values()
    while not (is_loaded() and all(check().ok for check in ready)):  # noqa: ASYNC110  # asked, they do not tell
        await asyncio.sleep(SETTLE_SECONDS)
    gc.freeze()  # no collection need walk it from here on, which would be a pause
    keep_freed_memory()


async def wait_for_stop() -> None:
    """Returns when SIGTERM or SIGINT has come; from the call on, they do nothing else."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


class _Opener:
    """The listeners of one service as they open, and the order in which they close."""

    def __init__(self, config: Config, draining: _Draining) -> None:
        self._config = config
        self._draining = draining
        self._hot: list[Listener] = []
        self._operations: Listener | None = None
        self._watchers: list[asyncio.Task[None]] = []
        # A tenth of the grace period: readiness has failed and every answer says `Connection: close`, but a request
        # that is already on its way on an idle connection must still find us.
        self._linger_seconds = config.shutdown.grace_seconds / 10
        # aiohttp may wait twice: for the handler, then for its task.
        self._drain_seconds = config.shutdown.grace_seconds * 0.4

    async def open(self, pod_resolver: PodResolver, cluster_view: ClusterView) -> Service:
        scheduler = await self._open_hot(
            "scheduler", self._config.scheduler.listen, self._config.scheduler.tls, SCHEDULER_BODY_BYTES,
            lambda: scheduler_routes(self._config, pod_resolver, cluster_view),
        )  # fmt: skip
        admission = await self._open_hot(
            "admission", self._config.admission.listen, self._config.admission.tls, ADMISSION_BODY_BYTES,
            lambda: admission_routes(self._config, pod_resolver, cluster_view),
        )  # fmt: skip
        operations = await self._open_operations(cluster_view)
        return Service(scheduler, admission, operations, pod_resolver.resolver.is_loaded)

    async def _open_hot(
        self,
        name: str,
        listen: str,
        tls: TlsConfig | None,
        body_limit_bytes: int,
        endpoints: Callable[[], Mapping[str, Route]],
    ) -> str:
        if not listen:
            return ""
        files = TlsFiles(name, tls.certificate, tls.key, tls.client_ca) if tls else None
        server = route_server(endpoints(), body_limit_bytes=body_limit_bytes, draining=lambda: self._draining.begun)
        runner = web.ServerRunner(server, shutdown_timeout=self._drain_seconds)
        listener = await open_listener(name, runner, *parse_listen(listen), files.context if files else None)
        self._hot.append(listener)
        if files:
            self._watchers.append(asyncio.create_task(files.watch(FILE_CHECK_SECONDS)))
        return f"{'https' if files else 'http'}://{listener.address}"

    async def _open_operations(self, cluster_view: ClusterView) -> str:
        if not self._config.operations.listen:
            return ""
        live = {"ping": CheckResult, **cluster_view.live_checks()}
        ready = {"shutdown": self._draining.check, **cluster_view.ready_checks()}
        runner = web.AppRunner(operations_app(live, ready), access_log=None, shutdown_timeout=1.0)
        self._operations = await open_listener("operations", runner, *parse_listen(self._config.operations.listen))
        return f"http://{self._operations.address}"

    async def close(self) -> None:
        self._draining.begun = True
        if self._hot:
            await asyncio.sleep(self._linger_seconds)
        await asyncio.gather(*(listener.close() for listener in self._hot))
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if self._operations:
            await self._operations.close()


def _shown(config: Config) -> object:
    """The settings as they may be logged."""
    shown = msgspec.to_builtins(config)
    shown["cache"]["url"] = without_password(config.cache.url)
    return shown


def policy_of(config: Config) -> Policy:
    """The operator's settings as placement reads them."""
    scheduler, placement = config.scheduler, config.placement
    return Policy(
        pending=scheduler.pending,
        unknown=scheduler.unknown,
        assume=frozenset(map(parse_platform, scheduler.assume)),
        compatibility=Compatibility(
            run_386_on_amd64=placement.run_386_on_amd64, run_arm_on_arm64=placement.run_arm_on_arm64
        ),
        preference={
            normalize_platform("", architecture).architecture: boost
            for architecture, boost in placement.preference.items()
        },
        ignore_runtime_classes=frozenset(placement.ignore_runtime_classes),
    )


def scheduler_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The three verbs by path."""
    verbs = SchedulerVerbs(
        pod_resolver,
        wait_seconds=config.scheduler.wait_seconds,
        pending_limit_seconds=config.scheduler.pending_limit_seconds,
        level_label=config.placement.level_label,
        nodes=cluster_view.nodes,
        may_read_secrets=is_loopback(config.scheduler.listen) or _is_mutual(config.scheduler.tls),
        clock=time.monotonic,
    )
    return {
        "/scheduler/filter": Route("filter", verbs.filter, verbs.fallback_filter, verbs.filter_nowait),
        "/scheduler/prioritize": Route(
            "prioritize", verbs.prioritize, verbs.fallback_prioritize, verbs.prioritize_nowait
        ),
        "/scheduler/preempt": Route("preempt", verbs.preempt, verbs.fallback_preempt),
    }


def admission_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The webhook by path."""
    admission = PodAdmission(
        pod_resolver,
        AdmissionPolicy(
            tolerations=config.admission.tolerations,
            node_affinity=config.admission.node_affinity,
            scheduler_name=config.admission.scheduler_name,
        ),
        cluster_platforms=cluster_view.platforms,
        wait_seconds=config.admission.wait_seconds,
        may_read_secrets=_may_read_for_reviews(config),
    )
    return {
        "/admission/pods": Route("admission", admission.review, admission.fallback, admission.review_nowait),
    }


def _needs_pending_pods(config: Config) -> bool:
    """Whether a scheduler will ask about them, or nothing else tells which pull secrets may be read."""
    return bool(config.scheduler.listen) or (config.registry.pull_secrets and not _may_read_for_reviews(config))


def _may_read_for_reviews(config: Config) -> bool:
    """Whether only the API server reaches the webhook, so that a review may make us read the secrets it names."""
    return config.admission.network_policy or _is_mutual(config.admission.tls)


def _is_mutual(tls: TlsConfig | None) -> bool:
    """Whether only callers with a certificate of a known authority come in."""
    return bool(tls and tls.client_ca)
