"""The count of starts by workload and architecture, as a part of the service."""

import contextlib
import random
import time
from collections.abc import AsyncIterator

from extender.cluster.counted_pods import COUNTED_PODS
from extender.cluster.listwatch import ListWatch
from extender.config.tree import Config
from extender.kubernetes.core_v1 import NodeName
from extender.outlets.pod_starts import OTHER, PodStarts
from extender.outlets.request_nodes import NodeView
from extender.service.background import in_background
from extender.service.cluster_view import ClusterView


@contextlib.asynccontextmanager
async def open_pod_starts(config: Config, cluster_view: ClusterView) -> AsyncIterator[None]:
    """Counts beside the context where the settings ask for it; does nothing without a cluster."""
    client, nodes = cluster_view.client, cluster_view.nodes
    if client is None or nodes is None or not config.placement.count_starts:
        yield
        return
    starts = PodStarts(lambda name: _architecture_of(nodes, name))
    watch = ListWatch(client, COUNTED_PODS, starts, clock=time.monotonic, random=random.random)
    async with in_background(watch.run()):
        yield


def _architecture_of(nodes: NodeView, name: str) -> str:
    platform = nodes.platforms.get(NodeName(name))
    return platform.architecture if platform else OTHER
