"""The admission policies on a real API server: as they are shipped, applied and at work."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, ApiError, connect
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import write_account
from testbed.objects import KubernetesObject, namespace, pod
from testbed.shipped_files import Mode
from tests.e2e.policies import GATE, ApplyPolicies, applied_policies, dry_run, gates_of, until_held
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

FOREIGN = {"name": "example.com/quota"}
LABEL = "multiarch-extender.io/gated"
MODE = "multiarch-extender.io/mode"
SCHEDULER = "multiarch-scheduler"
IMAGE = "registry.example.com/team/app:1"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


@pytest.fixture
async def apply_policies(api: ApiClient) -> AsyncIterator[ApplyPolicies]:
    """Applies policies; they are deleted after the test."""
    async with applied_policies(api) as apply:
        yield apply


CONTROLLED = {"apiVersion": "apps/v1", "name": "owner", "uid": UID, "controller": True}
CASES: dict[str, tuple[KubernetesObject, KubernetesObject, list[KubernetesObject]]] = {
    "plain": ({}, {}, [GATE]),
    "without-labels": ({"labels": None}, {}, [GATE]),
    "generated-name": ({"name": None, "generateName": "generated-"}, {}, [GATE]),
    "null-gates": ({}, {"schedulingGates": None}, [GATE]),
    "no-gates": ({}, {"schedulingGates": []}, [GATE]),
    "foreign-gate": ({}, {"schedulingGates": [FOREIGN]}, [FOREIGN, GATE]),
    "ours-already": ({}, {"schedulingGates": [GATE]}, [GATE]),
    "of-a-replica-set": ({"ownerReferences": [{**CONTROLLED, "kind": "ReplicaSet"}]}, {}, [GATE]),
    "of-a-job": ({"ownerReferences": [{**CONTROLLED, "apiVersion": "batch/v1", "kind": "Job"}]}, {}, [GATE]),
    "of-a-stateful-set": ({"ownerReferences": [{**CONTROLLED, "kind": "StatefulSet"}]}, {}, [GATE]),
    "of-a-daemon-set": ({"ownerReferences": [{**CONTROLLED, "kind": "DaemonSet"}]}, {}, []),
    "not-controlled-by-its-daemon-set": (
        {"ownerReferences": [{**CONTROLLED, "kind": "DaemonSet", "controller": False}]},
        {},
        [GATE],
    ),
    "bound": ({}, {"nodeName": "somewhere"}, []),
    "mirror": ({"annotations": {"kubernetes.io/config.mirror": "hash"}}, {"nodeName": "somewhere"}, []),
    "ignored": ({"annotations": {MODE: "ignore"}}, {}, []),
    "observed": ({"annotations": {MODE: "observe"}}, {}, []),
    "enforced": ({"annotations": {MODE: "enforce"}}, {}, [GATE]),
    "misspelt-mode": ({"annotations": {MODE: "Ignore"}}, {}, [GATE]),
    "pinned": ({}, {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, [GATE]),
}


def case_pod(name: str, where: str) -> KubernetesObject:
    """The pod of a case in `CASES`."""
    metadata, spec, _ = CASES[name]
    made = pod(name, IMAGE, namespace=where, spec=spec)
    made["metadata"] = {key: value for key, value in {**made["metadata"], **metadata}.items() if value is not None}
    return made


async def test_the_gate_policy_holds_exactly_the_pods_that_are_decided_about(
    api: ApiClient, apply_policies: ApplyPolicies
) -> None:
    """Every shape of pod, in namespaces of each mode."""
    await apply_policies("gate")
    await until_held(api)
    for made, expected in [
        (await dry_run(api, case_pod(name, "default")), gates) for name, (_, _, gates) in CASES.items()
    ]:
        name = made["metadata"]["name"]
        assert (name, gates_of(made)) == (name, expected)
        assert (made["metadata"].get("labels", {}).get(LABEL) == "true") is (GATE in expected)
    await api.apply(namespace("watched", {MODE: "observe"}))
    await api.apply(namespace("unwatched", {MODE: "ignore"}))
    await api.apply(namespace("odd", {MODE: "nonsense"}))
    expectations = {"watched": [], "unwatched": [], "odd": [GATE], "kube-system": []}
    for where, expected in expectations.items():
        made = await dry_run(api, case_pod("plain", where))
        assert (where, gates_of(made)) == (where, expected)
    assert gates_of(await dry_run(api, case_pod("enforced", "watched"))) == [GATE]


# --- what our own account may do, under its real token and with more rights than it has


WITH_PODS = ("pods", *(f"pods/{part}" for part in ("status", "binding", "eviction", "ephemeralcontainers", "resize")))
ALL_OF_PODS: KubernetesObject = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "all-of-pods"},
    "rules": [{"apiGroups": [""], "resources": [*WITH_PODS, "bindings"], "verbs": ["*"]}],
}
BOUND_TO_US: KubernetesObject = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "all-of-pods"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all-of-pods"},
    "subjects": [{"kind": "ServiceAccount", "name": "multiarch-webhook", "namespace": "multiarch-extender"}],
}
DENIED = "ValidatingAdmissionPolicy 'multiarch-extender-own-account' with binding"


@pytest.fixture
async def account(control_plane: LocalCluster, api: ApiClient, tmp_path: Path) -> AsyncIterator[ApiClient]:
    """A client with the token of the shipped webhook's ServiceAccount, which may do everything with pods here."""
    path = await write_account(api, control_plane.kubeconfig, tmp_path / "account.kubeconfig", Mode.WEBHOOK)
    for manifest in (ALL_OF_PODS, BOUND_TO_US):
        await api.apply(manifest)
    async with connect(path) as client:
        yield client
    for manifest in (BOUND_TO_US, ALL_OF_PODS):
        await api.delete(manifest["kind"], "all-of-pods", "", manifest["apiVersion"])


def requirement(*architectures: str) -> KubernetesObject:
    """Node affinity for these architectures."""
    expression = {"key": "kubernetes.io/arch", "operator": "In", "values": list(architectures)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


TOLERATION = {"key": "arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}
OWN_TOLERATION = {"key": "own", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
FULL: KubernetesObject = {
    "schedulingGates": [FOREIGN, GATE],
    "tolerations": [OWN_TOLERATION],
    "nodeSelector": {"disk": "fast"},
    "activeDeadlineSeconds": 900,
    "securityContext": {"runAsUser": 1000},
    "volumes": [{"name": "scratch", "emptyDir": {}}],
}
GATED_METADATA: KubernetesObject = {
    "labels": {LABEL: "true", "team": "red"},
    "annotations": {"example.com/note": "keep", "multiarch-extender.io/reason": "held"},
    "finalizers": ["example.com/hold"],
}


def release(found: KubernetesObject) -> KubernetesObject:
    """The patch by which a held pod is let go: everything in one."""
    return {
        "metadata": {
            "uid": found["metadata"]["uid"],
            "resourceVersion": found["metadata"]["resourceVersion"],
            "labels": {LABEL: None},
            "annotations": {"multiarch-extender.io/reason": "image X is built only for linux/arm64"},
        },
        "spec": {
            "affinity": requirement("arm64"),
            "tolerations": [*found["spec"].get("tolerations", []), TOLERATION],
            "schedulingGates": [{"$patch": "delete", **GATE}],
        },
    }


def set_at(path: str, value: object, operation: str = "replace") -> Any:
    """A JSON Patch of one operation."""
    return [{"op": operation, "path": path, "value": value}]


def drop(path: str) -> Any:
    """A JSON Patch that removes."""
    return [{"op": "remove", "path": path}]


PATCHES: dict[str, Any] = {
    "the image": set_at("/spec/containers/0/image", "registry.example.com/evil:1"),
    "another owner's gate": drop("/spec/schedulingGates/0"),
    "all gates": drop("/spec/schedulingGates"),
    "a foreign label added": set_at("/metadata/labels/added", "x", "add"),
    "a foreign label changed": set_at("/metadata/labels/team", "blue"),
    "a foreign label removed": drop("/metadata/labels/team"),
    "all labels removed": drop("/metadata/labels"),
    "a foreign annotation added": set_at("/metadata/annotations/added", "x", "add"),
    "a foreign annotation changed": set_at("/metadata/annotations/example.com~1note", "x"),
    "a foreign annotation removed": drop("/metadata/annotations/example.com~1note"),
    "all annotations removed": drop("/metadata/annotations"),
    "a node selector added": set_at("/spec/nodeSelector/more", "x", "add"),
    "the deadline": set_at("/spec/activeDeadlineSeconds", 5),
    "the seconds of a toleration": set_at("/spec/tolerations/0/tolerationSeconds", 1),
    "a finalizer added": set_at("/metadata/finalizers/-", "example.com/more", "add"),
    "finalizers removed": drop("/metadata/finalizers"),
    "an owner": set_at("/metadata/ownerReferences", [{**CONTROLLED, "kind": "ReplicaSet"}], "add"),
    "a label beside the release": [
        *set_at("/metadata/labels/added", "x", "add"),
        *drop("/spec/schedulingGates/1"),
    ],
}
TEMPLATE = pod("made", IMAGE)


def requests_of(where: str) -> dict[str, tuple[str, str, Any]]:
    """What is neither a patch of the pod `held`, nor allowed: method, path and body."""
    pods = f"/api/v1/namespaces/{where}/pods"
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "held"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "somewhere"},
    }
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "held", "namespace": where}}
    container = {"name": "debug", "image": IMAGE, "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}
    return {
        "delete": ("DELETE", f"{pods}/held", None),
        "delete all": ("DELETE", pods, None),
        "create": ("POST", pods, {**TEMPLATE, "metadata": {"name": "made", "namespace": where}}),
        "bind": ("POST", f"{pods}/held/binding", binding),
        "bind the old way": ("POST", f"/api/v1/namespaces/{where}/bindings", binding),
        "evict": ("POST", f"{pods}/held/eviction", eviction),
        "status": ("PATCH", f"{pods}/held/status", [*set_at("/status/phase", "Failed")]),
        "debug": ("PATCH", f"{pods}/held/ephemeralcontainers", set_at("/spec/ephemeralContainers", [container], "add")),
        "a pod that is not held": (
            "PATCH",
            f"{pods}/free",
            set_at("/metadata/labels/multiarch-extender.io~1x", "y", "add"),
        ),
    }


async def test_our_account_may_let_held_pods_go_and_nothing_else(
    api: ApiClient, account: ApiClient, apply_policies: ApplyPolicies, world: World
) -> None:
    """27 requests under the real token of our ServiceAccount are refused by the policy; releases are allowed."""
    where = await world.namespace()
    for name, metadata, spec in (("held", GATED_METADATA, FULL), ("free", {"labels": {"team": "red"}}, {})):
        made = pod(name, IMAGE, namespace=where, spec=spec)
        await api.create({**made, "metadata": {**made["metadata"], **metadata}})
    path = f"/api/v1/namespaces/{where}/pods/held"
    before = await api.get("Pod", "held", where)
    # RBAC allows it; a policy that is gone may be at work for a second.
    await eventually(
        lambda: refusal(account, "PATCH", f"{path}?dryRun=All", PATCHES["the image"]), lambda found: found == "allowed"
    )
    await apply_policies("own-account")
    await until_denied(account, path)

    refused = {}
    for what, changes in PATCHES.items():
        refused[what] = await refusal(account, "PATCH", path, changes)
    for what, (method, other, body) in requests_of(where).items():
        refused[what] = await refusal(account, method, other, body)
    assert {what: said for what, said in refused.items() if DENIED not in said} == {}
    assert len(refused) >= 20
    world.figure(f"own account: {len(refused)} requests refused by the policy under our ServiceAccount's token")
    after = await api.get("Pod", "held", where)
    assert after == before

    canary = {**TEMPLATE, "metadata": {"name": "made", "namespace": where}}
    await account.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", canary)
    patch = release(before)
    released = await account.request("PATCH", path, patch, content_type=STRATEGIC)
    assert gates_of(released) == [FOREIGN]
    assert LABEL not in released["metadata"]["labels"]
    assert released["spec"]["affinity"] == requirement("arm64")
    assert TOLERATION in released["spec"]["tolerations"]
    await api.request("PATCH", path, drop("/metadata/finalizers"), content_type=JSON_PATCH)  # others may what they may


async def until_denied(account: ApiClient, path: str) -> None:
    """Returns when the policy is at work."""
    await eventually(
        lambda: refusal(account, "PATCH", f"{path}?dryRun=All", PATCHES["the image"]),
        lambda found: "ValidatingAdmissionPolicy" in found,
    )


async def refusal(account: ApiClient, method: str, path: str, body: Any) -> str:
    """What the API server says against the request; `allowed` if nothing."""
    content_type = JSON_PATCH if isinstance(body, list) else "application/json"
    try:
        await account.request(method, path, body, content_type=content_type)
    except ApiError as exc:
        return str(exc)
    return "allowed"


@pytest.mark.parametrize("form", ["whole", "gate alone", "nothing", "json patch", "put"])
async def test_our_account_lets_minimal_pods_go_in_every_form(
    api: ApiClient, account: ApiClient, apply_policies: ApplyPolicies, world: World, form: str
) -> None:
    """A pod without labels, annotations, affinity and tolerations of its own, released in five ways."""
    await apply_policies("own-account")
    where = await world.namespace()
    made = await api.create(pod("held", IMAGE, namespace=where, spec={"schedulingGates": [GATE]}))
    path = f"/api/v1/namespaces/{where}/pods/held"
    await until_denied(account, path)
    match form:
        case "whole":
            found = await account.request("PATCH", path, release(made), content_type=STRATEGIC)
        case "gate alone":
            bare = {"spec": {"schedulingGates": [{"$patch": "delete", **GATE}]}, "metadata": {"labels": {LABEL: None}}}
            found = await account.request("PATCH", path, bare, content_type=STRATEGIC)
        case "nothing":
            found = await account.request(
                "PATCH", path, {"metadata": {"uid": made["metadata"]["uid"]}}, content_type=STRATEGIC
            )
        case "json patch":
            changes: Any = [*set_at("/spec/affinity", requirement("amd64"), "add"), *drop("/spec/schedulingGates")]
            found = await account.request("PATCH", path, changes, content_type=JSON_PATCH)
        case _:
            made["spec"].pop("schedulingGates")
            made["spec"]["affinity"] = requirement("amd64")
            found = await account.request("PUT", path, made)
    assert gates_of(found) == ([GATE] if form == "nothing" else [])


# --- the second scheduler's name


async def test_the_scheduler_is_named_where_a_namespace_asks_for_it_with_nothing_of_ours_running(
    api: ApiClient, apply_policies: ApplyPolicies, world: World
) -> None:
    """No service and no webhook run at all: pods of labelled namespaces get the name, those of others do not."""
    asking = await world.namespace(second=True)
    other = await world.namespace()
    await apply_policies("scheduler-name")
    await eventually(
        lambda: dry_run(api, pod("p", IMAGE, namespace=asking)),
        lambda found: found["spec"]["schedulerName"] == SCHEDULER,
    )
    named: dict[str, tuple[KubernetesObject, KubernetesObject, str]] = {
        "none": ({}, {}, SCHEDULER),
        "default": ({}, {"schedulerName": "default-scheduler"}, SCHEDULER),
        "another": ({}, {"schedulerName": "volcano"}, "volcano"),
        "observed": ({"annotations": {MODE: "observe"}}, {}, "default-scheduler"),
        "daemon": ({"ownerReferences": [{**CONTROLLED, "kind": "DaemonSet"}]}, {}, "default-scheduler"),
    }
    for name, (metadata, spec, expected) in named.items():
        made = pod(name, IMAGE, namespace=asking, spec=spec)
        found = await dry_run(api, {**made, "metadata": {**made["metadata"], **metadata}})
        assert (name, found["spec"]["schedulerName"]) == (name, expected)
    assert (await dry_run(api, pod("p", IMAGE, namespace=other)))["spec"]["schedulerName"] == "default-scheduler"
