"""One service: opens what it is made of in order, closes it in the reverse order, and loses no request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial

import msgspec
import structlog

from extender import __version__
from extender.background import FILE_CHECK_SECONDS, in_background, own_background
from extender.config.checks import parse_listen
from extender.config.tree import Config
from extender.machine import Machine
from extender.masked import masked_settings
from extender.metrics import gauge
from extender.placement.gate import UnknownImages
from extender.server.http import ADMISSION, SCHEDULER, Limits, Listener, open_listener
from extender.server.operations import Check, CheckResult, Operations
from extender.server.routes import PostRoutes, Responder, Route
from extender.server.tls import TlsFiles
from extender.service.cluster_view import ClusterView, check_watch
from extender.service.endpoints import admission_routes, scheduler_routes
from extender.service.gates import open_gates
from extender.service.keys import credential_key
from extender.service.resolving import OpenSources, open_pod_resolver
from extender.service.self_managed import SelfManaged, open_own_certificate

log = structlog.get_logger()

BUILD_INFO = gauge("multiarch_build_info", "Always 1; the version is the label.", "version", (__version__,))
SERVES = gauge(
    "multiarch_serves",
    "1 for what this replica is there for: the webhook's reviews, a scheduler's calls, removing gates.",
    "part",
    ("webhook", "scheduler", "gates"),
)


class Service(msgspec.Struct, frozen=True):
    """A running service: the base URL of each listener, empty for one that is off."""

    scheduler_url: str
    admission_url: str
    operations_url: str


@contextlib.asynccontextmanager
async def open_service(
    config: Config, cluster_view: ClusterView, open_sources: OpenSources, machine: Machine
) -> AsyncIterator[Service]:
    """The whole service, which answers until the context is left; leaving drains it within the grace period.

    Raises:
        ConfigError: an address cannot be bound, or a file of the configuration cannot be used.
    """
    BUILD_INFO[__version__].set(1)
    problem = own_background()
    SERVES["webhook"].set(bool(config.admission.listen))
    SERVES["scheduler"].set(bool(config.scheduler.listen))
    SERVES["gates"].set(config.admission.unknown is UnknownImages.GATE)
    client, nodes, events = cluster_view.client, cluster_view.nodes, cluster_view.events
    async with contextlib.AsyncExitStack() as stack:

        async def run(work: Coroutine[None, None, None], name: str) -> None:
            await stack.enter_async_context(in_background(work, name))

        identity = await stack.enter_async_context(open_own_certificate(config, client, machine))
        tls = open_tls(config, identity)
        key = credential_key(config.cache.key_file, machine.token_bytes)
        sources = await stack.enter_async_context(open_sources(config.registry, key))
        pod_resolver = await stack.enter_async_context(open_pod_resolver(sources, config, cluster_view, machine))
        for watch in cluster_view.watches:
            await run(watch.run(), f"watch-{watch.name}")
        if events:
            await run(events.run(), "events")
        # A scheduler asks about pending pods next. A webhook does not: they have been reviewed.
        if cluster_view.pending and config.scheduler.listen:
            await run(cluster_view.pending.run(pod_resolver.warm), "watch-pods")
        gates = await stack.enter_async_context(open_gates(config, cluster_view, pod_resolver, machine))

        await sources.check()
        if tls:
            await run(tls.files.watch(FILE_CHECK_SECONDS), "tls-admission")
        listeners = await stack.enter_async_context(_open_listeners(config, machine))
        live: Mapping[str, Check] = {"ping": CheckResult, "background": lambda: _check(not problem(), problem())}
        ready: Mapping[str, Check] = {
            "shutdown": listeners.check,
            "registries": lambda: _check(sources.is_ready, "the files for them are not read yet"),
            **{each.name: partial(check_watch, each) for each in cluster_view.watches},
            **({"gates": gates.check} if gates else {}),
        }
        informative: Mapping[str, Check] = {
            **({"certificate": identity.check} if identity else {}),
        }
        can_gate = gates.can_gate if gates else lambda: False
        verbs = scheduler_routes(config, pod_resolver, nodes, machine.clock)
        reviews = admission_routes(config, pod_resolver, cluster_view, can_gate)
        service = Service(
            scheduler_url=listeners.open("scheduler", config.scheduler.listen, verbs, SCHEDULER),
            admission_url=listeners.open("admission", config.admission.listen, reviews, ADMISSION, tls),
            operations_url=listeners.open_operations(config.operations.listen, live, ready, informative),
        )
        log.info("service.started", version=__version__, config=masked_settings(msgspec.to_builtins(config)))
        yield service
        await listeners.drain()


def open_tls(config: Config, identity: SelfManaged | None = None) -> TlsFiles | None:
    """The certificate of the webhook's listener, that of `identity` if there is one; None if there is no TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    tls = config.admission.tls
    if not config.admission.listen or tls is None:
        return None
    if identity:
        return TlsFiles("admission", str(identity.file), str(identity.file), tls.client_ca)
    return None if tls.self_managed else TlsFiles("admission", tls.certificate, tls.key, tls.client_ca)


class _Listeners:
    """The listeners of a service, and whether it is about to end."""

    def __init__(self, grace_seconds: float, machine: Machine) -> None:
        self._machine = machine
        self._stopping = asyncio.Event()
        self._listeners: list[Listener] = []
        self._operations: list[Listener] = []
        # Readiness already fails and every answer says `Connection: close`, but requests of callers that do not know it
        # yet still get an answer: of the default grace 5 s, in which kube-proxies learn of a changed EndpointSlice.
        self._linger_seconds = grace_seconds / 4
        # A quarter is left for everything else, such as giving the Lease up.
        self._drain_seconds = grace_seconds / 2

    def check(self) -> CheckResult:
        """Fails once the service is to end."""
        return _check(not self._stopping.is_set(), "shutting down")

    def open(
        self, name: str, listen: str, routes: Mapping[str, Route], limits: Limits, tls: TlsFiles | None = None
    ) -> str:
        """Answers there, and returns the base URL; empty where `listen` is. Raises ConfigError."""
        if not listen:
            return ""
        responder = PostRoutes(routes, draining=self._stopping.is_set, token_bytes=self._machine.token_bytes)
        listener = self._listen(name, responder, listen, tls, limits, self._drain_seconds)
        self._listeners.append(listener)
        return f"{'https' if tls else 'http'}://{listener.address}"

    def open_operations(
        self, listen: str, live: Mapping[str, Check], ready: Mapping[str, Check], informative: Mapping[str, Check]
    ) -> str:
        """As `open`, of health checks and metrics."""
        if not listen:
            return ""
        operations = Operations(live, ready, informative, clock=self._machine.clock)
        listener = self._listen("operations", operations, listen, None, Limits(), self._linger_seconds / 4)
        self._operations.append(listener)
        return f"http://{listener.address}"

    def _listen(
        self, name: str, service: Responder, listen: str, tls: TlsFiles | None, limits: Limits, drain_seconds: float
    ) -> Listener:
        address, context, bind = parse_listen(listen), tls.context if tls else None, self._machine.bind
        return open_listener(name, service, *address, context, bind=bind, limits=limits, drain_seconds=drain_seconds)

    async def drain(self) -> None:
        """Fails readiness, and goes on answering while callers take notice."""
        self._stopping.set()
        if self._listeners:
            await asyncio.sleep(self._linger_seconds)

    async def close(self) -> None:
        """Closes the listeners once requests in flight have ended, that of operations last."""
        self._stopping.set()
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        for listener in self._operations:
            await listener.close()


@contextlib.asynccontextmanager
async def _open_listeners(config: Config, machine: Machine) -> AsyncIterator[_Listeners]:
    listeners = _Listeners(config.shutdown.grace_seconds, machine)
    try:
        yield listeners
    finally:
        await listeners.close()


def _check(ok: bool, otherwise: str) -> CheckResult:  # it is the result
    return CheckResult(ok=ok, detail="" if ok else otherwise)
