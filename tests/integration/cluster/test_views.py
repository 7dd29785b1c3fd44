"""The views over a real connection: paging, watching, losing the server in every way, and coming back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from extender.cluster.client import ClusterClient
from extender.cluster.listwatch import Handler, ListWatch, Resource
from extender.cluster.views import NAMESPACES, NODES, PODS, NamespaceView, PendingPods, WatchedNodes
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName, Pod
from extender.placement.nodes import NodeLookup
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, namespace, node, pod, serve_api

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        for name, architecture in (("a", "amd64"), ("b", "arm64"), ("c", "amd64")):
            server.put(NODES.path, node(name, architecture))
        yield server


@asynccontextmanager
async def watching(
    client: ClusterClient,
    resource: Resource,
    handler: Handler,
    sleep: Callable[[float], Awaitable[None]] | None = None,
    stall_seconds: float = 5.0,
) -> AsyncIterator[ListWatch]:
    async def no_time(_: float) -> None:
        await asyncio.sleep(0)

    watch = ListWatch(
        client,
        resource,
        handler,
        clock=asyncio.get_running_loop().time,
        random=lambda: 0.0,
        sleep=sleep or no_time,
        stall_seconds=stall_seconds,
    )
    running = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def node_view(client: ClusterClient) -> WatchedNodes:
    return WatchedNodes(client, clock=asyncio.get_running_loop().time)


async def test_node_view_has_the_platforms_of_unlabelled_nodes(api: ApiServer, client: ClusterClient) -> None:
    """Whose labels do not state them, as long as the cluster has one."""
    beta = {"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux"}
    nodes = node_view(client)
    for name in ("virtual-1", "virtual-2"):
        made = node(name)
        made["metadata"]["labels"] = beta
        api.put(NODES.path, made)
    async with watching(client, NODES, nodes):
        await eventually(lambda: nodes.synced)
        assert nodes.unlabelled == {AMD64}
        api.remove(NODES.path, "virtual-1")
        await eventually(lambda: NodeName("virtual-1") not in nodes.platforms)
        assert nodes.unlabelled == {AMD64}
        api.put(NODES.path, node("virtual-2"))
        await eventually(lambda: not nodes.unlabelled)
        assert nodes.platforms[NodeName("virtual-2")] == AMD64


async def test_node_view_follows_the_cluster(api: ApiServer, client: ClusterClient) -> None:
    """Listed, added, changed and deleted nodes; what happened while history was lost is found by a new list."""
    nodes = node_view(client)
    async with watching(client, NODES, nodes):
        await eventually(lambda: nodes.synced)
        assert dict(nodes.platforms) == {"a": AMD64, "b": ARM64, "c": AMD64}
        api.put(NODES.path, node("d", "s390x"))
        api.put(NODES.path, node("a", "arm64"))
        api.remove(NODES.path, "c")
        await eventually(lambda: NodeName("c") not in nodes.platforms)
        assert len(api.received("list")) == 1
        for watcher in api.watchers(NODES.path):
            watcher.selector = "metadata.name=nothing"  # this connection misses what follows
        api.remove(NODES.path, "b")
        api.compact()
        api.send(NODES.path, None)
        await eventually(lambda: NodeName("b") not in nodes.platforms)
    assert dict(nodes.platforms) == {"a": ARM64, "d": Platform("linux", "s390x")}
    assert len(api.received("list")) == 2


async def test_stalled_watch_is_replaced(api: ApiServer, client: ClusterClient) -> None:
    """A connection on which nothing comes any more is given up, and what it withheld is got by the next."""
    nodes = node_view(client)
    async with watching(client, NODES, nodes, stall_seconds=0.05):
        await eventually(lambda: api.watchers(NODES.path))
        for watcher in api.watchers(NODES.path):
            watcher.outgoing = asyncio.Queue()  # the server goes on, but its words get lost
        api.put(NODES.path, node("d"))
        await eventually(lambda: NodeName("d") in nodes.platforms)
    assert len(api.received("watch")) > 1


async def test_node_newer_than_our_view_is_found(api: ApiServer, client: ClusterClient) -> None:
    """The scheduler asks about a node whose event we have not got yet; a silent server costs the budget alone."""
    nodes = node_view(client)
    async with watching(client, NODES, nodes):
        await eventually(lambda: api.watchers(NODES.path))
        for watcher in api.watchers(NODES.path):
            watcher.selector = "metadata.name=nothing"
        api.put(NODES.path, node("d", "arm64"))
        assert await nodes.find([NodeName("a"), NodeName("d"), NodeName("e")], 5.0) == NodeLookup(
            absent=(NodeName("e"),)
        )
        assert nodes.platforms[NodeName("d")] == ARM64
        api.is_open.clear()
        assert await nodes.find([NodeName("f")], 0.01) == NodeLookup(unreachable=(NodeName("f"),))


async def test_a_view_is_current_while_its_watch_brings_something(api: ApiServer, client: ClusterClient) -> None:
    """From the first event or bookmark on; not before the watch, and not when it has ended."""
    nodes = node_view(client)
    seen = [nodes.is_current]
    running = asyncio.create_task(nodes.watch.run())
    await eventually(lambda: api.watchers(NODES.path))
    seen.append(nodes.is_current)
    assert seen == [False, False]
    api.bookmark(NODES.path)
    await eventually(lambda: nodes.is_current)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    seen.append(nodes.is_current)
    assert seen == [False] * 3


async def test_pods_are_announced_until_they_are_bound(api: ApiServer, client: ClusterClient) -> None:
    """Waiting pods are announced, bound and finished ones are not, and binding announces nothing."""
    api.put(PODS, pod("waits", "a:1"))
    api.put(PODS, pod("runs", "b:1", node_name="n1", phase="Running"))
    api.put(PODS, pod("failed", "c:1", phase="Failed"))
    announced: list[str] = []

    def note(seen: Pod) -> None:
        assert seen.spec is not None
        assert seen.spec.containers is not None
        announced.append(seen.spec.containers[0].image or "")

    pods = PendingPods(client, clock=time.monotonic, random=lambda: 0.5)
    running = asyncio.create_task(pods.run(note))
    pods.look()
    await eventually(lambda: api.watchers(PODS))
    api.put(PODS, pod("waits", "a:1", node_name="n1"))
    api.put(PODS, pod("new", "d:1"))
    api.put(PODS, pod("new", "d:2"))
    await eventually(lambda: "d:2" in announced)
    running.cancel()
    await eventually(lambda: not api.watchers(PODS))
    assert announced == ["a:1", "d:1", "d:2"]


async def test_namespaces_are_read_as_metadata_only(api: ApiServer, client: ClusterClient) -> None:
    """List and watch each name the metadata-only representation, and annotations follow the namespace."""
    path = NAMESPACES.path
    api.put(path, namespace("a", mode="observe"))
    view = NamespaceView()
    async with watching(client, NAMESPACES, view):
        await eventually(lambda: api.watchers(path))
        assert view.annotations_of("a") == {"multiarch-extender.io/mode": "observe"}
        api.put(path, namespace("b", prefer="arm64"))
        api.put(path, namespace("a"))
        await eventually(lambda: not view.annotations_of("a"))
        assert view.annotations_of("b") == {"multiarch-extender.io/prefer": "arm64"}
        api.remove(path, "b")
        await eventually(lambda: not view.annotations_of("b"))
    assert [request.headers["Accept"] for request in api.requests] == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    ]
