"""The two kinds of apply of the played kube-apiserver: what is sent, who manages it, and what a second time changes."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from testbed.memory_network import run_in_memory
from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import JSON_PATCH, MERGE_PATCH, ApiServer
from tests.worlds.installation import put_in_place
from tests.worlds.strategic_merge import three_way_patch
from tests.worlds.trace import Trace

T = TypeVar("T")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN = {"key": "team", "operator": "Equal", "value": "shop", "effect": "NoSchedule"}
GPU = {"key": "gpu", "operator": "Exists"}
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
GATE = {"name": "example.com/theirs"}
Apply = Callable[[ApiServer, Document], Awaitable[Document]]


def pod(**spec: Any) -> Document:
    return {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "app", "image": "a:1"}], **spec}}


def affinity(*terms: Document) -> Document:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


SHAPES: dict[str, Document] = {
    "bare": pod(),
    "tolerations": pod(tolerations=[OWN]),
    "terms": pod(affinity=affinity(ZONE, ZONE)),
    "gated": pod(schedulingGates=[GATE], tolerations=[OWN], affinity=affinity(ZONE)),
    "empties": pod(tolerations=[], nodeSelector={}, affinity={"nodeAffinity": {}}),
    "nulls": {"metadata": {"name": "x", "labels": None}, "spec": {**pod()["spec"], "tolerations": None}},
    "ports": pod(containers=[{"name": "app", "image": "a", "ports": [{"containerPort": 80}], "env": [{"name": "A"}]}]),
    "labelled": {**pod(), "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}}},
}


async def server_side(api: ApiServer, manifest: Document) -> Document:
    return await api.apply("Pod", manifest, user="author", manager="kubectl")


async def client_side(api: ApiServer, manifest: Document) -> Document:
    return await api.client_apply("Pod", manifest, user="author")


WAYS: dict[str, Apply] = {"client-side": client_side, "server-side": server_side}


def play(script: Callable[[ApiServer], Awaitable[T]]) -> T:
    async def main(network: Any) -> T:
        api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        put_in_place(api, "Namespace", {"metadata": {"name": "default"}})
        return await script(api)

    return run_in_memory(main)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_manifest_applied_again_changes_nothing(shape: str, first: str, second: str) -> None:
    async def script(api: ApiServer) -> list[str]:
        versions = []
        for way in (first, second, second):
            await WAYS[way](api, SHAPES[shape])
            found = api.get("Pod", "default", "x") or {}
            versions.append(found["metadata"]["resourceVersion"])
        return versions

    created, applied, again = play(script)

    assert applied == again
    assert (created == applied) or (first, second) == ("server-side", "client-side")  # which notes what was applied


@pytest.mark.parametrize("way", WAYS)
def test_what_another_party_added_stays(way: str) -> None:
    async def script(api: ApiServer) -> list[Any]:
        manifest = pod(schedulingGates=[GATE], tolerations=[OWN])
        await WAYS[way](api, manifest)
        await api.patch("Pod", "default", "x", {"spec": {"affinity": affinity(ZONE)}}, MERGE_PATCH, user="us")
        await WAYS[way](api, manifest)
        spec = (api.get("Pod", "default", "x") or {})["spec"]
        return [spec["affinity"], OWN in spec["tolerations"]]

    assert play(script) == [affinity(ZONE), True]


def test_what_another_manager_changed_is_a_conflict_unless_forced() -> None:
    async def script(api: ApiServer) -> tuple[str, list[Document]]:
        manifest = pod(schedulingGates=[GATE], tolerations=[OWN])
        await server_side(api, manifest)
        added = [{"op": "add", "path": "/spec/tolerations/-", "value": GPU}]
        await api.patch("Pod", "default", "x", added, JSON_PATCH, user="us", manager="multiarch-extender")
        try:
            await server_side(api, manifest)
        except ApiError as exc:
            said = str(exc)
        else:
            said = "200"
        forced = {**manifest, "spec": {**manifest["spec"], "tolerations": [OWN, GPU]}}
        await api.apply("Pod", forced, user="author", manager="kubectl", force=True)
        return said, (api.get("Pod", "default", "x") or {})["spec"]["tolerations"]

    said, tolerations = play(script)

    assert "409" in said
    assert 'conflict with "multiarch-extender" using v1: .spec.tolerations' in said
    assert GPU in tolerations


def test_what_admission_adds_belongs_to_nobody() -> None:
    async def script(api: ApiServer) -> list[str]:
        await server_side(api, pod(tolerations=[OWN]))  # admission appends two
        found = api.get("Pod", "default", "x") or {}
        managed = api.managers.of(found["metadata"]["uid"])
        return [".".join(path) for paths in managed.values() for path in sorted(paths)]

    assert play(script) == [
        "spec.containers.[name=app]",
        "spec.containers.[name=app].image",
        "spec.containers.[name=app].name",
        "spec.tolerations",
    ]


def test_field_that_is_applied_no_more_goes_unless_others_manage_it() -> None:
    async def script(api: ApiServer) -> Document:
        labels = {"metadata": {"name": "x", "labels": {"a": "b", "c": "d"}}}
        await server_side(api, {**pod(), **labels})
        other = {"metadata": {"name": "x", "labels": {"c": "d"}}}
        await api.apply("Pod", other, user="other", manager="other")
        await server_side(api, pod())
        found: Document = (api.get("Pod", "default", "x") or {})["metadata"]["labels"]
        return found

    assert play(script) == {"c": "d"}


@pytest.mark.parametrize(
    ("original", "modified", "current", "patch"),
    [
        ({"a": 1}, {"a": 1}, {"a": 1, "b": 2}, {}),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}, {"b": None}),
        ({}, {"a": {"b": 1}}, {"a": {"c": 1}}, {"a": {"b": 1}}),
        ({"tolerations": [OWN]}, {"tolerations": [OWN]}, {"tolerations": [OWN, GPU]}, {"tolerations": [OWN]}),
        (
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "a", "image": "2"}]},
            {"containers": [{"name": "a", "image": "1", "x": 1}, {"name": "b"}, {"name": "injected"}]},
            {"containers": [{"$patch": "delete", "name": "b"}, {"name": "a", "image": "2"}]},
        ),
    ],
)
def test_three_way_patch_has_what_differs(
    original: Document, modified: Document, current: Document, patch: Document
) -> None:
    assert three_way_patch(original, modified, current) == patch
