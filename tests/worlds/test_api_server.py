"""The played kube-apiserver, against what was seen of kube-apiserver 1.36.3 (the rows of changes of a gated pod)."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from testbed.memory_network import run_in_memory
from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import JSON_PATCH, MERGE_PATCH, ApiServer
from tests.worlds.api_server import STRATEGIC_MERGE_PATCH as SMP
from tests.worlds.installation import put_in_place
from tests.worlds.trace import Trace

T = TypeVar("T")
GATE = "multiarch-extender.io/platforms"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ARCH = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
OWN = {"key": "team", "operator": "Equal", "value": "shop", "effect": "NoSchedule"}
GPU = {"key": "gpu", "operator": "Exists"}
ONLY_ADDITIONS, NO_CHANGE_OF_TERMS = "only additions are allowed", "no additions/deletions to non-empty"
NO_OTHER_FIELDS, NO_LOST_TOLERATION = "may not change fields other than", "existing toleration can not be modified"


def with_api(play: Callable[[ApiServer], Awaitable[T]]) -> T:
    async def main(network: Any) -> T:
        api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        put_in_place(api, "Namespace", {"metadata": {"name": "default"}})
        return await play(api)

    return run_in_memory(main)


def terms(*found: Document) -> Document:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(found)}}}


def pod(gated: bool = True, **spec: Any) -> Document:
    gates = {"schedulingGates": [{"name": GATE}]} if gated else {}
    containers = [{"name": "app", "image": "registry.example.com/app:1"}]
    return {"metadata": {"name": "x"}, "spec": {"containers": containers, **gates, **spec}}


def changed(found: Document, patch: Any, content_type: str = SMP) -> Document:
    async def play(api: ApiServer) -> Document:
        await api.create("Pod", found, user="author")
        return await api.patch("Pod", "default", "x", patch, content_type, user="somebody")

    return with_api(play)


def merge(**spec: Any) -> Document:
    return {"spec": spec}


def add(path: str, value: Any) -> list[Document]:
    return [{"op": "add", "path": path, "value": value}]


TERM = {"matchExpressions": [ARCH]}
BOTH = {"matchExpressions": [ARCH, ZONE]}
AT_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
AT_TERMS = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
ANTI = {"podAntiAffinity": {REQUIRED: [{"labelSelector": {}, "topologyKey": "zone"}]}}
PREFERRED = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": TERM}]}}
ACCEPTED: dict[str, tuple[Document, Any, str]] = {
    "terms-from-nil": (pod(), merge(affinity=terms(TERM)), SMP),
    "terms-by-json-patch": (pod(), add("/spec/affinity", terms(TERM)), JSON_PATCH),
    "terms-beside-preferred": (pod(affinity=PREFERRED), merge(affinity=terms(TERM, BOTH)), SMP),
    "expression-to-all": (pod(affinity=terms(TERM, TERM)), merge(affinity=terms(BOTH, BOTH)), SMP),
    "expression-to-one": (pod(affinity=terms(TERM, TERM)), merge(affinity=terms(TERM, BOTH)), SMP),
    "expression-at-end": (pod(affinity=terms(TERM)), add(f"{AT_TERMS}/0/matchExpressions/-", ZONE), JSON_PATCH),
    "expression-to-fields": (pod(affinity=terms(AT_NAME)), merge(affinity=terms(AT_NAME | TERM)), SMP),
    "beside-empty-term": (pod(affinity=terms({}, TERM)), merge(affinity=terms({}, BOTH)), SMP),
    "preferred": (pod(affinity=PREFERRED), merge(affinity={"nodeAffinity": None}), SMP),
    "selector-from-nil": (pod(), merge(nodeSelector={"a": "b"}), SMP),
    "selector-added": (pod(nodeSelector={"c": "d"}), merge(nodeSelector={"a": "b"}), SMP),
    "toleration-at-end": (pod(tolerations=[OWN]), add("/spec/tolerations/-", GPU), JSON_PATCH),
    "toleration-in-front": (pod(tolerations=[OWN]), add("/spec/tolerations/0", GPU), JSON_PATCH),
    "toleration-not-gated": (pod(False, tolerations=[OWN]), add("/spec/tolerations/-", GPU), JSON_PATCH),
    "image": (pod(), merge(containers=[{"name": "app", "image": "registry.example.com/app:2"}]), SMP),
    "gate-by-index": (pod(), [{"op": "remove", "path": "/spec/schedulingGates/0"}], JSON_PATCH),
    "all-gates": (pod(), merge(schedulingGates=None), MERGE_PATCH),
    "gate-that-is-gone": (pod(False), merge(schedulingGates=[{"$patch": "delete", "name": GATE}]), SMP),
    "everything-at-once": (
        pod(tolerations=[OWN]),
        {
            "metadata": {"annotations": {"a": "b"}, "labels": {"gated": None}},
            "spec": {
                "affinity": terms(TERM),
                "tolerations": [OWN, GPU],
                "schedulingGates": [{"$patch": "delete", "name": GATE}],
            },
        },
        SMP,
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[Document, Any, str, str]] = {
    "expression-in-front": (
        pod(affinity=terms(TERM)),
        add(f"{AT_TERMS}/0/matchExpressions/0", ZONE),
        JSON_PATCH,
        ONLY_ADDITIONS,
    ),
    "values-narrowed": (
        pod(affinity=terms(TERM)),
        merge(affinity=terms({"matchExpressions": [{**ARCH, "values": ["amd64"]}]})),
        SMP,
        ONLY_ADDITIONS,
    ),
    "terms-swapped": (
        pod(affinity=terms(TERM, AT_NAME)),
        merge(affinity=terms(AT_NAME, TERM)),
        SMP,
        ONLY_ADDITIONS,
    ),
    "empty-term-filled": (pod(affinity=terms({})), merge(affinity=terms(TERM)), SMP, ONLY_ADDITIONS),
    "term-added": (
        pod(affinity=terms(TERM)),
        merge(affinity=terms(TERM, TERM)),
        SMP,
        NO_CHANGE_OF_TERMS,
    ),
    "affinity-taken-off": (pod(affinity=terms(TERM)), merge(affinity=None), SMP, NO_CHANGE_OF_TERMS),
    "anti-affinity": (pod(), merge(affinity=ANTI), SMP, NO_OTHER_FIELDS),
    "selector-changed": (
        pod(nodeSelector={"a": "b"}),
        merge(nodeSelector={"a": "c"}),
        SMP,
        "only additions to spec.nodeSelector",
    ),
    "toleration-lost": (pod(tolerations=[OWN]), merge(tolerations=[GPU]), SMP, NO_LOST_TOLERATION),
    "gate-added": (
        pod(),
        add("/spec/schedulingGates/-", {"name": "x/y"}),
        JSON_PATCH,
        "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'x/y'",
    ),
    "affinity-not-gated": (pod(False), merge(affinity=terms(TERM)), SMP, NO_OTHER_FIELDS),
    "selector-not-gated": (pod(False), merge(nodeSelector={"a": "b"}), SMP, NO_OTHER_FIELDS),
    "other-uid": (pod(), {"metadata": {"uid": "other"}}, SMP, "field is immutable"),
    "test-that-fails": (
        pod(),
        [{"op": "test", "path": "/spec/schedulingGates/0/name", "value": "other"}],
        JSON_PATCH,
        "the server rejected our request due to an error in our request",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_gated_pod_takes_change(name: str) -> None:
    found, patch, content_type = ACCEPTED[name]

    assert changed(found, patch, content_type)


@pytest.mark.parametrize("name", REFUSED)
def test_gated_pod_refuses_change(name: str) -> None:
    found, patch, content_type, why = REFUSED[name]

    with pytest.raises(ApiError) as refusal:
        changed(found, patch, content_type)

    assert refusal.value.code == 422
    assert why in refusal.value.message


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(affinity=terms()), "nodeSelectorTerms: Required value: must have at least one node selector term"),
        (pod(nodeName="n"), "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"),
        (
            pod(schedulingGates=[{"name": GATE}, {"name": GATE}]),
            f'spec.schedulingGates[1]: Duplicate value: "{GATE}"',
        ),
    ],
)
def test_invalid_pod_is_refused_at_its_creation(found: Document, why: str) -> None:
    async def play(api: ApiServer) -> None:
        await api.create("Pod", found, user="author")

    with pytest.raises(ApiError) as refusal:
        with_api(play)

    assert refusal.value.code == 422
    assert why in refusal.value.message


def test_stale_version_is_a_conflict() -> None:
    async def play(api: ApiServer) -> None:
        made = await api.create("Pod", pod(), user="author")
        await api.patch("Pod", "default", "x", merge(tolerations=[GPU, OWN]), MERGE_PATCH, user="other")
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "b"}}}
        await api.patch("Pod", "default", "x", stale, SMP, user="somebody")

    with pytest.raises(ApiError) as refusal:
        with_api(play)

    assert refusal.value.code == 409
    assert "the object has been modified" in refusal.value.message


def test_gated_pod_is_not_bound() -> None:
    async def play(api: ApiServer) -> None:
        await api.create("Pod", pod(), user="author")
        await api.bind("default", "x", "node")

    with pytest.raises(ApiError, match=r"has non-empty \.spec\.schedulingGates") as refusal:
        with_api(play)

    assert refusal.value.code == 409


def test_pod_that_nobody_knows_is_not_found() -> None:
    async def play(api: ApiServer) -> None:
        await api.patch("Pod", "default", "x", {}, MERGE_PATCH, user="somebody")

    with pytest.raises(ApiError, match='pods "x" not found') as refusal:
        with_api(play)

    assert refusal.value.code == 404


def test_change_that_changes_nothing_is_not_written() -> None:
    async def play(api: ApiServer) -> tuple[Document, Document]:
        before = await api.create("Pod", pod(), user="author")
        after = await api.patch("Pod", "default", "x", {"metadata": {"labels": None}}, MERGE_PATCH, user="somebody")
        return before, after

    before, after = with_api(play)

    assert after == before


def test_tolerations_of_the_server_come_back_with_each_change() -> None:
    async def play(api: ApiServer) -> list[list[str]]:
        await api.create("Pod", pod(), user="author")
        found = []
        for tolerations in (None, [{"operator": "Exists", "effect": "NoExecute"}]):
            patch = merge(tolerations=tolerations)
            try:
                changed = await api.patch("Pod", "default", "x", patch, MERGE_PATCH, user="somebody")
            except ApiError as exc:
                found.append([str(exc.code)])
            else:
                found.append([each.get("key", "") for each in changed["spec"]["tolerations"]])
        return found

    seconds = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert with_api(play) == [seconds, ["422"]]


def test_dry_run_stores_nothing() -> None:
    async def play(api: ApiServer) -> list[Document]:
        made = await api.create("Pod", {**pod(), "metadata": {"generateName": "x-"}}, user="author", dry_run=True)
        assert made["metadata"]["name"].startswith("x-")
        return api.list("Pod")

    assert with_api(play) == []


def test_subscribers_see_changes_in_order_though_one_leads_to_another() -> None:
    seen: list[tuple[str, str]] = []

    async def play(api: ApiServer) -> None:
        def follow(change: str, _before: Document | None, after: Document | None) -> None:
            if change == "ADDED" and after:
                api.set_status("Pod", "default", "x", {"phase": "Running"})

        api.subscribe("Pod", follow)
        api.subscribe("Pod", lambda change, _, after: seen.append((change, (after or {})["status"]["phase"])))
        await api.create("Pod", pod(), user="author")

    with_api(play)

    assert seen == [("ADDED", "Pending"), ("MODIFIED", "Running")]
