"""The watch of images whose tags move, as a part of the service."""

import contextlib
import socket
import time
from collections.abc import AsyncIterator

from extender.cluster.pod_events import PodEvents
from extender.config.tree import Config
from extender.drift.drift_watch import DriftWatch
from extender.resolver.pod_resolver import PodResolver
from extender.service.background import in_background
from extender.service.cluster_view import ClusterView


@contextlib.asynccontextmanager
async def open_drift_watch(config: Config, cluster_view: ClusterView, pod_resolver: PodResolver) -> AsyncIterator[None]:
    """Tells of images in use that lose or gain a platform, beside the context; does nothing without a cluster."""
    client, nodes = cluster_view.client, cluster_view.nodes
    if client is None or nodes is None:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        events = None
        if config.drift.events:
            events = PodEvents(client, instance=socket.gethostname(), clock=time.monotonic, wall_clock=time.time)
            await stack.enter_async_context(in_background(events.run(), "drift-events"))
        watch = DriftWatch(
            client,
            pod_resolver,
            nodes,
            events=events,
            check_seconds=config.drift.check_seconds,
            clock=time.monotonic,
        )
        await stack.enter_async_context(in_background(watch.run(), "drift"))
        yield
