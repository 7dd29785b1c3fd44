"""What is known of the cluster around the service, kept current by watches, or that there is none.

Knows which watches run and whether they are well; what is done about a pending pod is the caller's business.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from extender.cluster.client import ClusterClient, open_cluster
from extender.cluster.listwatch import Handler, ListWatch, Resource
from extender.cluster.namespaces import NAMESPACES, NamespaceView
from extender.cluster.nodes import NODES
from extender.cluster.nodes import NodeView as WatchedNodes
from extender.cluster.pods import PENDING_PODS, PendingPods
from extender.cluster.secrets import ClusterSecrets
from extender.errors import ClusterError, ConfigError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Pod
from extender.registry.keyring import SecretReader
from extender.server.operations import Check, Health
from extender.server.scheduler import NodeView


class Surroundings(Protocol):
    """The cluster as the outlets see it."""

    @property
    def nodes(self) -> NodeView | None:
        """The cluster's nodes; None without a cluster."""

    @property
    def secrets(self) -> SecretReader | None:
        """Where the cluster's pull secrets are read; None without a cluster."""

    def namespace_annotations(self, namespace: str, /) -> Mapping[str, str] | None:
        """The namespace's annotations; None where they are not known."""

    def platforms(self) -> frozenset[Platform]:
        """The platforms of the cluster's nodes; empty while they are not known."""

    def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AbstractAsyncContextManager[None]:
        """While the context lasts, all this is kept current and pods that wait for a node are announced.

        None: nobody wants to know of such pods, and they are not watched.
        """

    def ready_checks(self) -> Mapping[str, Check]:
        """By name, what must be well before we are ready."""

    def live_checks(self) -> Mapping[str, Check]:
        """By name, what only a restart could mend."""


class NoCluster:
    """Surroundings without a cluster; with `nodes`, of nodes that are kept current elsewhere."""

    def __init__(self, nodes: NodeView | None = None) -> None:
        self.nodes = nodes
        self.secrets = None

    def namespace_annotations(self, _namespace: str) -> None:
        """No namespaces are watched."""

    def platforms(self) -> frozenset[Platform]:
        """The platforms of the given nodes."""
        return _platforms_of(self.nodes)

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Nothing to watch."""
        del on_pending_pod
        yield

    def ready_checks(self) -> Mapping[str, Check]:
        """None."""
        return {}

    def live_checks(self) -> Mapping[str, Check]:
        """None."""
        return {}


class _View(Handler, Protocol):
    """What a watch keeps current."""

    @property
    def synced(self) -> bool:
        """Whether everything has been seen once."""


class _Watch:
    """A running watch, and whether it is well."""

    def __init__(self, client: ClusterClient, resource: Resource, view: _View) -> None:
        self._view = view
        self._watch = ListWatch(client, resource, view, clock=time.monotonic, random=random.random)
        self.task = asyncio.create_task(self._watch.run())

    def readiness(self) -> Health:
        """Fails until the first sync; afterwards an old view is still better than none, and says how old it is."""
        if not self._view.synced:
            return Health(ok=False, detail="never synced")
        return Health(detail=f"{self._watch.age_seconds():.0f} s old")

    def liveness(self) -> Health:
        """Fails if the watch has ended, which only a mistake of ours can do."""
        return Health(ok=not self.task.done(), detail="ended" if self.task.done() else "")


class WatchedCluster:
    """Surroundings that watches keep current while `watching`."""

    def __init__(self, client: ClusterClient, *, level_label: str) -> None:
        self.secrets = ClusterSecrets(client)
        self.nodes = WatchedNodes(client, level_label=level_label, clock=time.monotonic)
        self._namespaces = NamespaceView()
        self._client = client
        self._watches: dict[str, _Watch] = {}

    def namespace_annotations(self, namespace: str) -> Mapping[str, str]:
        """The namespace's annotations; not synced means none."""
        return self._namespaces.annotations_of(namespace)

    def platforms(self) -> frozenset[Platform]:
        """The platforms of the nodes in view, once all have been seen."""
        return _platforms_of(self.nodes)

    @contextlib.asynccontextmanager
    async def watching(self, on_pending_pod: Callable[[Pod], None] | None) -> AsyncIterator[None]:
        """Keep nodes and namespaces current, and announce pods that wait for a node, until the context is left.

        The pods only if somebody is to be told: their watch costs the API server two events a pod.
        """
        views: list[tuple[Resource, _View]] = [(NODES, self.nodes), (NAMESPACES, self._namespaces)]
        if on_pending_pod:
            views.append((PENDING_PODS, PendingPods(on_pending_pod)))
        self._watches = {resource.name: _Watch(self._client, resource, view) for resource, view in views}
        try:
            yield
        finally:
            for watch in self._watches.values():
                watch.task.cancel()
            await asyncio.gather(*(watch.task for watch in self._watches.values()), return_exceptions=True)

    def ready_checks(self) -> Mapping[str, Check]:
        """One per watch."""
        return {name: watch.readiness for name, watch in self._watches.items()}

    def live_checks(self) -> Mapping[str, Check]:
        """One per watch."""
        return {f"watch-{name}": watch.liveness for name, watch in self._watches.items()}


@contextlib.asynccontextmanager
async def open_cluster_surroundings(kubeconfig: str, context: str, level_label: str) -> AsyncIterator[WatchedCluster]:
    """The cluster we run in, or the one of the kubeconfig file; its connection is closed at the end.

    Raises:
        ConfigError: there is no such configuration, or it cannot be used.
    """
    try:
        client = await open_cluster("auto", kubeconfig, context)
    except ClusterError as exc:
        raise ConfigError(f"cluster: {exc}; name a kubeconfig, or set cluster.mode=none to run without") from exc
    try:
        yield WatchedCluster(client, level_label=level_label)
    finally:
        await client.close()


def _platforms_of(nodes: NodeView | None) -> frozenset[Platform]:
    return nodes.platforms.distinct if nodes and nodes.synced else frozenset()
