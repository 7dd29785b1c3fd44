"""The service's view of the cluster, kept current by watches; also a view for running without a cluster."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from extender.cluster.client import ClusterClient, open_chosen_cluster
from extender.cluster.listwatch import LOST_SECONDS, ListWatch
from extender.cluster.pod_events import PodEvents
from extender.cluster.secrets import OnRefused
from extender.cluster.views import NAMESPACES, NamespaceView, PendingPods, WatchedNodes
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError
from extender.machine import Machine
from extender.placement.nodes import ClusterNodes
from extender.server.operations import CheckResult

STALE_SECONDS = LOST_SECONDS + 30.0
"""Age of a view from which readiness fails: there is time to list again after one lost watch."""


def check_watch(watch: ListWatch) -> CheckResult:
    """Fails until all objects have been listed once, and while what is known is older than `STALE_SECONDS`."""
    if not watch.is_synced:
        return CheckResult(ok=False, detail="never synced")
    age_seconds = watch.age_seconds()
    if age_seconds > STALE_SECONDS:
        return CheckResult(ok=False, detail=f"{age_seconds:.0f} s old, more than {STALE_SECONDS:g}")
    return CheckResult(detail=f"{age_seconds:.0f} s old")


class ClusterView(msgspec.Struct, frozen=True, eq=False):
    """The cluster as the service's parts see it: none here, what was read of one, or what watches keep of one.

    `client` is that of its API. `annotations` are those of namespaces that were read. `events` sends events about pods
    and is the one sender of this process. `on_refused_secret` is told of each pull secret that may not be read.
    """

    nodes: WatchedNodes | None = None
    client: ClusterClient | None = None
    on_refused_secret: OnRefused | None = None
    annotations: Mapping[str, Mapping[str, str]] = {}
    namespaces: NamespaceView | None = None
    pending: PendingPods | None = None
    events: PodEvents | None = None
    watches: tuple[ListWatch, ...] = ()

    @property
    def namespace_annotations(self) -> Callable[[str], Mapping[str, str] | None]:
        """What gives the annotations of a namespace; None where they are not known."""
        return self.namespaces.annotations_of if self.namespaces else self.annotations.get

    @property
    def known_nodes(self) -> Callable[[], ClusterNodes]:
        """What gives the cluster's nodes; none while they are not known."""
        return self.nodes.known if self.nodes else ClusterNodes

    def watch_pending_pods(self) -> None:
        """Starts a listing of pending pods and watches for a few seconds; returns at once."""
        if self.pending:
            self.pending.watch_briefly()


@contextlib.asynccontextmanager
async def open_cluster_view(config: Config, machine: Machine) -> AsyncIterator[ClusterView]:
    """The view of the cluster this process runs in or of the kubeconfig's, which may be none by the settings.

    Raises:
        ConfigError: there is no such cluster, or its configuration cannot be used.
    """
    if not config.has_cluster:
        yield ClusterView()
        return
    try:
        client = await open_chosen_cluster(config.cluster, machine.clock)
    except ClusterError as exc:
        raise ConfigError(f"cluster: {exc}; name a kubeconfig, or set cluster=none to run without") from exc
    try:
        yield watched_view(client, machine)
    finally:
        await client.close()


def watched_view(client: ClusterClient, machine: Machine) -> ClusterView:
    """The view that watches keep once they run."""
    clock, random = machine.clock, machine.random
    nodes = WatchedNodes(client, clock=clock, random=random)
    namespaces = NamespaceView()
    return ClusterView(
        nodes=nodes,
        client=client,
        namespaces=namespaces,
        pending=PendingPods(client, clock=clock, random=random),
        events=PodEvents(client, instance=machine.host_name, clock=clock, wall_clock=machine.wall_clock),
        watches=(
            nodes.watch,
            ListWatch(client, NAMESPACES, namespaces, clock=clock, random=random),
        ),
    )
