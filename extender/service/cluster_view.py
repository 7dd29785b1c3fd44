"""The service's view of the cluster, kept current by watches; also a view for running without a cluster."""

import contextlib
import functools
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from extender.background import in_background
from extender.cluster.client import ClusterClient, open_cluster
from extender.cluster.listwatch import Handler, ListWatch, Resource
from extender.cluster.node_trust import follow_node_trust
from extender.cluster.openshift_objects import RESOURCES, Lenient, MirrorViews
from extender.cluster.pod_events import PodEvents
from extender.cluster.secrets import ClusterSecrets
from extender.cluster.views import NAMESPACES, NODES, NamespaceView, PendingPods, WatchedNodes
from extender.config.tree import ClusterConfig, Config
from extender.credentials.keyring import SecretReader
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.placement.cluster_nodes import ClusterNodes
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import NodeConditions
from extender.scheduler.verbs import NodeView
from extender.server.operations import Check, CheckResult
from extender.service.operator_policies import preferred_nodes_of

# Age of a view from which readiness fails. A watch has a bookmark each minute, and one without a line for 255 s is
# begun again, so nothing confirms a view that is older than this.
STALE_SECONDS = 300.0


class CountedNodes(NodeView, Protocol):
    """The cluster's nodes, and how many there are of each kind."""

    @property
    def kinds(self) -> NodeKinds:
        """How many nodes there are of each kind."""

    def known(self) -> ClusterNodes:
        """What the nodes are; none until all nodes have been listed once."""


class GateSwitch(Protocol):
    """Whether pods may be held by our gate, and the health of what lifts it."""

    def can_gate(self) -> bool:
        """Whether somebody provably lifts gates."""

    def ready_checks(self) -> Mapping[str, Check]:
        """The checks of `/readyz` by name."""


class ClusterView:
    """The cluster as the outlets see it: none here, or what was read of one and is not watched.

    `nodes` are the cluster's, None without one. `client` is that of its API, with which all of it is read, `secrets`
    where its pull secrets are, and `events` where events are sent, while the view is kept current.
    """

    def __init__(
        self,
        nodes: CountedNodes | None = None,
        client: ClusterClient | None = None,
        annotations: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`nodes` are kept current elsewhere; `annotations` are those of namespaces, where they are known."""
        self.nodes = nodes
        self.client = client
        self.secrets: SecretReader | None = ClusterSecrets(client) if client else None
        self.events: PodEvents | None = None
        self._gates: GateSwitch | None = None
        self.namespace_annotations: Callable[[str], Mapping[str, str] | None] = (annotations or {}).get
        """The annotations of a namespace; None where they are not known."""
        self.known_nodes: Callable[[], ClusterNodes] = nodes.known if nodes else ClusterNodes
        """What the cluster's nodes are; none while they are not known."""
        self.look_at_pending_pods: Callable[[], None] = lambda: None
        """Starts a listing of pending pods and watches for a few seconds; returns at once."""

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Keeps the view current until the context is left; calls `on_pending_pod` for pods that wait for a node.

        None leaves pods unwatched.
        """
        del on_pending_pod
        yield

    def can_gate(self) -> bool:
        """Whether pods may be held by our gate, since somebody provably lifts it."""
        return self._gates is not None and self._gates.can_gate()

    def lift_gates_by(self, gates: GateSwitch | None) -> None:
        """Has `can_gate` and the checks speak for the gate controller too; None for none."""
        self._gates = gates

    def tell_mirrors_to(self, tell: Callable[[MirrorObjects], None]) -> None:
        """Has `tell` called with what OpenShift's objects say of mirrors, now and whenever it changes.

        It is not called where the settings do not have them watched.
        """

    def ready_checks(self) -> Mapping[str, Check]:
        """The checks of `/readyz` by name: one per view that is watched, and those of the gates."""
        return self._gates.ready_checks() if self._gates else {}


class _View(Handler, Protocol):
    """A view that a watch keeps current."""

    @property
    def synced(self) -> bool:
        """Whether every object has been listed once."""


def _readiness(watch: ListWatch, view: _View) -> CheckResult:
    """Fails until the first sync, and while the view is older than `STALE_SECONDS`."""
    if not view.synced:
        return CheckResult(ok=False, detail="never synced")
    age_seconds = watch.age_seconds()
    if age_seconds > STALE_SECONDS:
        return CheckResult(ok=False, detail=f"{age_seconds:.0f} s old, more than {STALE_SECONDS:g}")
    return CheckResult(detail=f"{age_seconds:.0f} s old")


class WatchedCluster(ClusterView):
    """A view of a cluster, kept current while the context of `watching` lasts."""

    client: ClusterClient
    events: PodEvents

    def __init__(
        self, client: ClusterClient, *, level_label: str, preferred_nodes: NodeConditions, openshift: bool = False
    ) -> None:
        self._watched = WatchedNodes(
            client, level_label=level_label, preferred_nodes=preferred_nodes, clock=time.monotonic
        )
        super().__init__(self._watched, client)
        self.events = PodEvents(client, instance=socket.gethostname(), clock=time.monotonic, wall_clock=time.time)
        self._mirrors = MirrorViews() if openshift else None
        self._namespaces = NamespaceView()
        self.namespace_annotations = self._namespaces.annotations_of
        self._pending_pods = PendingPods(client, clock=time.monotonic, random=random.random)
        self.look_at_pending_pods = self._pending_pods.look
        self._ready_checks: Mapping[str, Check] = {}

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Watches nodes and namespaces until the context is left, and pending pods after `look_at_pending_pods`."""
        views: list[tuple[Resource, _View]] = [(NODES, self._watched), (NAMESPACES, self._namespaces)]
        if self._mirrors:
            views += [(resource, self._mirrors.kinds[resource.name]) for resource in RESOURCES]
        self._ready_checks = ready_checks = dict[str, Check]()
        async with contextlib.AsyncExitStack() as stack:
            for resource, view in views:
                reader = Lenient(self.client) if resource in RESOURCES else self.client
                watch = ListWatch(reader, resource, view, clock=time.monotonic, random=random.random)
                if view is self._watched:
                    self._watched.follow(watch)
                ready_checks[resource.name] = functools.partial(_readiness, watch, view)
                await stack.enter_async_context(in_background(watch.run(), f"watch-{resource.name}"))
            if self._mirrors:
                following = follow_node_trust(self.client, self._mirrors.note_trust)
                await stack.enter_async_context(in_background(following, "openshift-trust"))
            await stack.enter_async_context(in_background(self.events.run(), "events"))
            if on_pending_pod:
                await stack.enter_async_context(in_background(self._pending_pods.run(on_pending_pod), "watch-pods"))
            yield

    def tell_mirrors_to(self, tell: Callable[[MirrorObjects], None]) -> None:
        """Has `tell` called with what OpenShift's objects say of mirrors, now and whenever it changes."""
        if self._mirrors:
            self._mirrors.tell_to(tell)

    def ready_checks(self) -> Mapping[str, Check]:
        """One check per view, and those of the gates."""
        return {**self._ready_checks, **super().ready_checks()}


@contextlib.asynccontextmanager
async def open_cluster_view(config: Config) -> AsyncIterator[ClusterView]:
    """The view of the cluster that the configuration names, which may be none.

    Raises:
        ConfigError: there is no such cluster, or its configuration cannot be used.
    """
    cluster = config.cluster
    if cluster.mode == "none":
        yield ClusterView()
        return
    async with open_watched_cluster(
        cluster,
        config.placement.level_label,
        preferred_nodes_of(config),
        openshift=config.registry.mirrors_of_openshift,
    ) as cluster_view:
        yield cluster_view


@contextlib.asynccontextmanager
async def open_watched_cluster(
    config: ClusterConfig, level_label: str, preferred_nodes: NodeConditions, *, openshift: bool = False
) -> AsyncIterator[WatchedCluster]:
    """The view of the cluster this process runs in or of the kubeconfig's; closes the connection at the end.

    Raises:
        ConfigError: there is no such configuration, or it cannot be used.
    """
    try:
        client = await open_cluster("auto", config.kubeconfig, config.context)
    except ClusterError as exc:
        raise ConfigError(
            f"cluster.kubeconfig: {exc}; name a kubeconfig, or set cluster.mode=none to run without"
        ) from exc
    try:
        yield WatchedCluster(client, level_label=level_label, preferred_nodes=preferred_nodes, openshift=openshift)
    finally:
        await client.close()
