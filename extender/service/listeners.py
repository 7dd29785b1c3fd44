"""The listeners of one service: how they open, and how they close without losing a request."""

import asyncio
from collections.abc import Mapping

from extender.background import FILE_CHECK_SECONDS, background_problem, end_background, start_background
from extender.config.checks import parse_listen
from extender.config.tree import Config
from extender.resolver.pod_resolver import PodResolver
from extender.server.http import Listener, open_listener
from extender.server.operations import Check, CheckResult, Operations
from extender.server.routes import PostRoutes
from extender.server.tls import TlsFiles
from extender.service.cluster_view import ClusterView
from extender.service.endpoints import OUTLETS, CanGate, Outlet

OPERATIONS = "operations"


def open_tls(outlet: Outlet, config: Config) -> TlsFiles | None:
    """The certificates of an outlet's listener; None where it goes without.

    Raises:
        ConfigError: a file cannot be used.
    """
    tls = outlet.tls(config)
    return TlsFiles(outlet.name, tls.certificate, tls.key, tls.client_ca) if tls else None


class Listeners:
    """Opens a listener for each outlet and those for operations, and closes them in the order that loses no request."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_draining = False
        self._outlets: list[Listener] = []
        self._operations: list[Listener] = []
        self._watchers: list[asyncio.Task[None]] = []
        # Readiness already fails and every answer says `Connection: close`, but requests of callers that do not know it
        # yet still get an answer: of the default grace 5 s, in which kube-proxies learn of a changed EndpointSlice.
        self._linger_seconds = config.shutdown.grace_seconds / 4
        # A tenth is left for everything else.
        self._drain_seconds = (config.shutdown.grace_seconds - self._linger_seconds) * 0.9

    async def open(
        self,
        pod_resolver: PodResolver,
        cluster_view: ClusterView,
        can_gate: CanGate,
        ready: Mapping[str, Check],
        seen: Mapping[str, Check],
    ) -> Mapping[str, str]:
        """Opens the listeners. Returns the base URL of each by name; empty for one that is switched off.

        `can_gate` is as in `admission_routes`; `ready` has the checks of `/readyz` by name, `seen` what it only shows.

        Raises:
            ConfigError: an address cannot be bound, or a file of certificates cannot be used.
        """
        urls = {
            outlet.name: await self._open_outlet(outlet, pod_resolver, cluster_view, can_gate) for outlet in OUTLETS
        }
        return {**urls, OPERATIONS: await self._open_operations(ready, seen)}

    async def drain(self) -> None:
        """Fails readiness, and answers for the time in which callers hear of it."""
        self._is_draining = True
        if self._outlets:
            await asyncio.sleep(self._linger_seconds)

    async def close(self) -> None:
        """Lets requests in flight end, and closes the outlets first and operations last."""
        self._is_draining = True
        await asyncio.gather(*(listener.close() for listener in self._outlets))
        await end_background(*self._watchers)
        for listener in self._operations:
            await listener.close()

    async def _open_outlet(
        self, outlet: Outlet, pod_resolver: PodResolver, cluster_view: ClusterView, can_gate: CanGate
    ) -> str:
        listen = outlet.listen(self._config)
        if not listen:
            return ""
        files = open_tls(outlet, self._config)
        routes = outlet.routes(self._config, pod_resolver, cluster_view, can_gate)
        context = files.context if files else None
        listener = open_listener(
            outlet.name,
            PostRoutes(routes, draining=lambda: self._is_draining),
            *parse_listen(listen),
            context,
            limits=outlet.limits,
            drain_seconds=self._drain_seconds,
        )
        self._outlets.append(listener)
        if files:
            self._watchers.append(start_background(files.files.watch(FILE_CHECK_SECONDS), f"tls-{outlet.name}"))
        return f"{'https' if files else 'http'}://{listener.address}"

    async def _open_operations(self, ready: Mapping[str, Check], seen: Mapping[str, Check]) -> str:
        listen = self._config.operations.listen
        if not listen:
            return ""
        checks = Operations(
            {"ping": CheckResult, "background": _check_background}, {"shutdown": self._check_draining, **ready}, seen
        )
        listener = open_listener(OPERATIONS, checks, *parse_listen(listen))
        self._operations.append(listener)
        return f"http://{listener.address}"

    def _check_draining(self) -> CheckResult:
        return CheckResult(ok=not self._is_draining, detail="shutting down" if self._is_draining else "")


def _check_background() -> CheckResult:
    problem = background_problem()
    return CheckResult(ok=not problem, detail=problem)
