"""The views of nodes and namespaces through the real door; tests/unit/cluster has what a watch does of every loss."""

import asyncio

import pytest

from extender.background import in_background
from extender.cluster.client import METADATA, ClusterClient
from extender.cluster.listwatch import Handler, ListWatch, Resource
from extender.cluster.views import NAMESPACES, NODES, NamespaceView, WatchedNodes
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, namespace, node

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.fixture
async def nodes(api: ApiServer, client: ClusterClient) -> WatchedNodes:
    for name, architecture in (("a", "amd64"), ("b", "arm64"), ("c", "amd64")):
        api.put(NODES.path, node(name, architecture))
    view = WatchedNodes(client, clock=asyncio.get_running_loop().time, random=float)
    view.watch = watch_of(client, NODES, view)
    return view


def watch_of(client: ClusterClient, resource: Resource, view: Handler) -> ListWatch:
    clock = asyncio.get_running_loop().time
    return ListWatch(client, resource, view, clock=clock, random=lambda: 0.0, sleep=lambda _: asyncio.sleep(0))


def deafen(api: ApiServer) -> None:
    """The connections that are open miss what follows."""
    api.cut_off(NODES.path)


async def test_node_view_follows_the_cluster(api: ApiServer, nodes: WatchedNodes) -> None:
    """Listed, added, changed and deleted nodes; what happened while history was lost is found by a new list."""
    async with in_background(nodes.watch.run()):
        await eventually(lambda: api.watches(NODES.path))
        assert nodes.synced
        assert dict(nodes.platforms) == {"a": AMD64, "b": ARM64, "c": AMD64}
        api.put(NODES.path, node("d", "s390x"))
        api.put(NODES.path, node("a", "arm64"))
        api.remove(NODES.path, "c")
        await eventually(lambda: NodeName("c") not in nodes.platforms)
        assert len(api.received("list")) == 1
        deafen(api)
        api.remove(NODES.path, "b")
        api.faults.compact()
        api.send(NODES.path, None)
        await eventually(lambda: NodeName("b") not in nodes.platforms)
    assert dict(nodes.platforms) == {"a": ARM64, "d": Platform("linux", "s390x")}
    assert len(api.received("list")) == 2


async def test_namespaces_are_read_as_metadata_only(api: ApiServer, client: ClusterClient) -> None:
    """List and watch each name the metadata-only representation, and annotations follow the namespace."""
    path, view = NAMESPACES.path, NamespaceView()
    api.put(path, namespace("a", mode="observe"))
    async with in_background(watch_of(client, NAMESPACES, view).run()):
        await eventually(lambda: api.watches(path))
        assert view.annotations_of("a") == {"multiarch-extender.io/mode": "observe"}
        api.put(path, namespace("b", prefer="arm64"))
        api.put(path, namespace("a"))
        await eventually(lambda: not view.annotations_of("a"))
        assert view.annotations_of("b") == {"multiarch-extender.io/prefer": "arm64"}
        api.remove(path, "b")
        await eventually(lambda: not view.annotations_of("b"))
    accepted = [request.headers["Accept"] for request in api.requests]
    assert accepted == ["application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", METADATA]
