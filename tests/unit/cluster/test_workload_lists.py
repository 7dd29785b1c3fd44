"""Workloads are read from a cluster page by page, and what may not be read is told."""

from typing import Any

import msgspec
import pytest

from extender.cli.audit_sources import read_cluster
from extender.cluster.client import ClusterRefused
from extender.cluster.workload_lists import (
    PAGE_OBJECTS,
    WORKLOAD_KINDS,
    list_documents,
    list_kind,
    list_nodes,
    list_nodes_and_images,
)
from extender.errors import ClusterError
from extender.kubernetes.core_v1 import LocalObjectReference
from extender.placement.facts import PodImage
from tests import builders
from tests.unit.cluster.scripted_api import ListedApi, ScriptedApi


def deployment(name: str, account: str = "", **spec: Any) -> dict[str, Any]:
    template = {"containers": [{"name": "c", "image": "app:1"}], "serviceAccountName": account, **spec}
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {"template": {"spec": template}}}


async def names_of(reader: ListedApi) -> list[str]:
    return [msgspec.json.decode(each)["metadata"]["name"] async for each in list_documents(reader, "/x")]


async def test_a_list_is_read_page_by_page() -> None:
    """Each page names the next one, and the limit is ours. One that expires is read again, once: objects come twice."""
    items = {"/x": [{"metadata": {"name": str(index)}} for index in range(5)]}
    reader = ListedApi(items)
    assert await names_of(reader) == list("01234")
    assert [query.get("continue") for _, query in reader.queries] == [None, "2", "4"]
    assert {query["limit"] for _, query in reader.queries} == {str(PAGE_OBJECTS)}
    assert await names_of(ListedApi(items, expired=("/x",))) == list("0101234")
    with pytest.raises(ClusterRefused):
        await names_of(ListedApi(items, expired=("/x", "/x")))


async def test_nodes_are_read_once_with_the_images_that_they_list() -> None:
    """Also where the list has expired meanwhile, and was read again."""
    items = [builders.node(str(index)) for index in range(5)]
    items[3]["status"]["images"] = [{"names": ["docker.io/library/app:1"]}]
    for path in ((), ("/api/v1/nodes",)):
        nodes, images = await list_nodes_and_images(ListedApi({"/api/v1/nodes": items}, expired=path))
        assert [node.name for node in nodes] == list("01234")
        assert images.nodes_with([PodImage("app:1")]) == {"3"}
        assert await list_nodes(ListedApi({"/api/v1/nodes": items}, expired=path)) == nodes


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"items": 1}', b"\xff", b"[" * 100_000])
async def test_an_answer_that_is_no_list_is_an_error(body: bytes) -> None:
    """Not an empty list."""
    with pytest.raises(ClusterError, match="is no list"):
        [each async for each in list_documents(ScriptedApi([body]), "/x")]


@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
async def test_objects_of_a_list_get_their_kind(kind: Any) -> None:
    """Which the API server leaves out; a namespace narrows the path."""
    path = kind.path("shop")
    assert "/namespaces/shop/" in path
    [found] = [each async for each in list_kind(ListedApi({path: [deployment("a")]}), kind, "shop")]
    assert (found["kind"], found["apiVersion"], found["metadata"]["name"]) == (kind.kind, kind.api_version, "a")


async def test_pods_get_the_pull_secrets_of_their_account() -> None:
    """As admission gives them: only to a pod that names none; the account is `default` where none is named."""
    accounts = [
        {"metadata": {"namespace": "shop", "name": name}, "imagePullSecrets": [{"name": f"of-{name}"}]}
        for name in ("default", "robot")
    ]
    own = deployment("c", imagePullSecrets=[{"name": "mine"}])
    reader = ListedApi({
        "/apis/apps/v1/deployments": [deployment("a"), deployment("b", "robot"), own, deployment("d", "nobody")],
        "/api/v1/serviceaccounts": accounts,
    })  # fmt: skip
    contents = await read_cluster(reader)
    assert contents.problems == []
    assert {each.key.name: each.spec.image_pull_secrets for each in contents.workloads} == {
        "a": (LocalObjectReference("of-default"),),
        "b": (LocalObjectReference("of-robot"),),
        "c": (LocalObjectReference("mine"),),
        "d": None,
    }


async def test_what_may_not_be_read_is_told_and_the_remainder_is_read() -> None:
    """Kinds that are refused, and an object with a field of the wrong type."""
    deployments = [deployment("bad", nodeSelector=[]), deployment("good")]
    refused = {"/api/v1/nodes": 403, "/apis/batch/v1/cronjobs": 403, "/api/v1/namespaces": 403}
    contents = await read_cluster(ListedApi({"/apis/apps/v1/deployments": deployments}, refused))
    assert [each.key.name for each in contents.workloads] == ["good"]
    assert [each.partition(": ")[0] for each in contents.problems] == [
        "nodes cannot be listed", "deployments", "cronjobs cannot be listed", "namespaces cannot be listed",
    ]  # fmt: skip
    with pytest.raises(ClusterRefused):
        await read_cluster(ListedApi({}, {"/api/v1/pods": 500}))
