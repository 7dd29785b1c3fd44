"""The service's view of the cluster, kept current by watches; also a view for running without a cluster."""

import contextlib
import functools
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

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
from extender.service.background import FILE_CHECK_SECONDS, in_background
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


class ClusterView(Protocol):
    """The cluster as the outlets see it."""

    @property
    def client(self) -> ClusterClient | None:
        """The client of the cluster's API; None without a cluster."""

    @property
    def nodes(self) -> CountedNodes | None:
        """The cluster's nodes; None without a cluster."""

    @property
    def secrets(self) -> SecretReader | None:
        """Where the cluster's pull secrets are read; None without a cluster."""

    @property
    def events(self) -> PodEvents | None:
        """Where events are sent, while the view is kept current; None without a cluster."""

    def namespace_annotations(self, namespace: str, /) -> Mapping[str, str] | None:
        """The namespace's annotations; None where they are not known."""

    def known_nodes(self) -> ClusterNodes:
        """What the cluster's nodes are; none while they are not known."""

    def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AbstractAsyncContextManager[None]:
        """Keeps the view current until the context is left; calls `on_pending_pod` for pods that wait for a node.

        None leaves pods unwatched.
        """

    def look_at_pending_pods(self) -> None:
        """Starts a listing of pending pods and watches for a few seconds; returns at once."""

    def can_gate(self) -> bool:
        """Whether pods may be held by our gate, since somebody provably lifts it."""

    def lift_gates_by(self, gates: GateSwitch | None) -> None:
        """Has `can_gate` and the checks speak for the gate controller too; None for none."""

    def tell_mirrors_to(self, tell: Callable[[MirrorObjects], None]) -> None:
        """Has `tell` called with what OpenShift's objects say of mirrors, now and whenever it changes.

        It is not called where the settings do not have them watched.
        """

    def ready_checks(self) -> Mapping[str, Check]:
        """The checks of `/readyz` by name."""


class NoCluster:
    """A view without a cluster; `nodes`, where given, are kept current elsewhere."""

    def __init__(self, nodes: CountedNodes | None = None) -> None:
        self.nodes = nodes
        self.known_nodes = nodes.known if nodes else ClusterNodes
        self.secrets: SecretReader | None = None
        self.client: ClusterClient | None = None
        self.events: PodEvents | None = None

    def namespace_annotations(self, namespace: str) -> Mapping[str, str] | None:
        """None: no namespaces are watched."""
        del namespace
        return None

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Watches nothing."""
        del on_pending_pod
        yield

    def look_at_pending_pods(self) -> None:
        """Does nothing."""

    def can_gate(self) -> bool:
        """False: nobody could lift a gate."""
        return False

    def lift_gates_by(self, gates: GateSwitch | None) -> None:
        """Does nothing."""

    def tell_mirrors_to(self, tell: Callable[[MirrorObjects], None]) -> None:
        """Does nothing."""

    def ready_checks(self) -> Mapping[str, Check]:
        """None."""
        return {}


class UnwatchedCluster(NoCluster):
    """What a command reads once: a cluster's pull secrets, if it has one, and annotations of namespaces."""

    def __init__(self, client: ClusterClient | None, annotations: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self.secrets: SecretReader | None = ClusterSecrets(client) if client else None
        self._annotations = annotations

    def namespace_annotations(self, namespace: str) -> Mapping[str, str] | None:
        """Those that were read; None where they could not be."""
        return self._annotations.get(namespace)


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


class WatchedCluster:
    """A view of a cluster, kept current while the context of `watching` lasts."""

    def __init__(
        self, client: ClusterClient, *, level_label: str, preferred_nodes: NodeConditions, openshift: bool = False
    ) -> None:
        self._mirrors = MirrorViews() if openshift else None
        self.secrets = ClusterSecrets(client)
        self.nodes = WatchedNodes(
            client, level_label=level_label, preferred_nodes=preferred_nodes, clock=time.monotonic
        )
        self.known_nodes = self.nodes.known
        self.events = PodEvents(client, instance=socket.gethostname(), clock=time.monotonic, wall_clock=time.time)
        self._namespaces = NamespaceView()
        self.namespace_annotations = self._namespaces.annotations_of
        self._pending_pods = PendingPods(client)
        self.look_at_pending_pods = self._pending_pods.look
        self.client = client
        self._gates: GateSwitch | None = None
        self._ready_checks: Mapping[str, Check] = {}

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Watches nodes and namespaces until the context is left, and pending pods after `look_at_pending_pods`."""
        views: list[tuple[Resource, _View]] = [(NODES, self.nodes), (NAMESPACES, self._namespaces)]
        if self._mirrors:
            views += [(resource, self._mirrors.kinds[resource.name]) for resource in RESOURCES]
        self._ready_checks = ready_checks = dict[str, Check]()
        async with contextlib.AsyncExitStack() as stack:
            for resource, view in views:
                reader = Lenient(self.client) if resource in RESOURCES else self.client
                watch = ListWatch(reader, resource, view, clock=time.monotonic, random=random.random)
                if view is self.nodes:
                    self.nodes.follow(watch)
                ready_checks[resource.name] = functools.partial(_readiness, watch, view)
                await stack.enter_async_context(in_background(watch.run(), f"watch-{resource.name}"))
            if self._mirrors:
                following = follow_node_trust(self.client, self._mirrors.note_trust)
                await stack.enter_async_context(in_background(following, "openshift-trust"))
            await stack.enter_async_context(in_background(self.events.run(), "events"))
            if on_pending_pod:
                await stack.enter_async_context(in_background(self._pending_pods.run(on_pending_pod), "watch-pods"))
            yield

    def can_gate(self) -> bool:
        """Whether pods may be held by our gate, since somebody provably lifts it."""
        return self._gates is not None and self._gates.can_gate()

    def lift_gates_by(self, gates: GateSwitch | None) -> None:
        """Has `can_gate` and the checks speak for the gate controller too; None for none."""
        self._gates = gates

    def tell_mirrors_to(self, tell: Callable[[MirrorObjects], None]) -> None:
        """Has `tell` called with what OpenShift's objects say of mirrors, now and whenever it changes."""
        if self._mirrors:
            self._mirrors.tell_to(tell)

    def ready_checks(self) -> Mapping[str, Check]:
        """One check per view, and those of the gates."""
        return {**self._ready_checks, **(self._gates.ready_checks() if self._gates else {})}


@contextlib.asynccontextmanager
async def open_cluster_view(config: Config) -> AsyncIterator[ClusterView]:
    """The view of the cluster that the configuration names, or `NoCluster`.

    Raises:
        ConfigError: there is no such cluster, or its configuration cannot be used.
    """
    cluster = config.cluster
    if cluster.mode == "none":
        yield NoCluster()
        return
    async with open_watched_cluster(
        cluster, config.placement.level_label, preferred_nodes_of(config), openshift=config.registry.openshift
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
        async with in_background(client.watch(FILE_CHECK_SECONDS), "cluster-files"):
            yield WatchedCluster(client, level_label=level_label, preferred_nodes=preferred_nodes, openshift=openshift)
    finally:
        await client.close()
