"""The admission policies on a real API server: as they are shipped, applied and at work."""

import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient, connect
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import write_account
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.policies import GATE, ApplyPolicies, dry_run, gates_of, refusal, until_held
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

FOREIGN = {"name": "example.com/quota"}
LABEL = "multiarch-extender.io/gated"
MODE = "multiarch-extender.io/mode"
IMAGE = "registry.example.com/team/app:1"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


CONTROLLED = {"apiVersion": "apps/v1", "name": "owner", "uid": UID, "controller": True}
CASES: dict[str, tuple[KubernetesObject, KubernetesObject, list[KubernetesObject]]] = {
    "plain": ({}, {}, [GATE]),
    "without-labels": ({"labels": None}, {}, [GATE]),
    "generated-name": ({"name": None, "generateName": "generated-"}, {}, [GATE]),
    "null-gates": ({}, {"schedulingGates": None}, [GATE]),
    "no-gates": ({}, {"schedulingGates": []}, [GATE]),
    "foreign-gate": ({}, {"schedulingGates": [FOREIGN]}, [FOREIGN, GATE]),
    "ours-already": ({}, {"schedulingGates": [GATE]}, [GATE]),
    "of-a-job": ({"ownerReferences": [{**CONTROLLED, "apiVersion": "batch/v1", "kind": "Job"}]}, {}, [GATE]),
    "of-a-daemon-set": ({"ownerReferences": [{**CONTROLLED, "kind": "DaemonSet"}]}, {}, []),
    "bound": ({}, {"nodeName": "somewhere"}, []),
    "ignored": ({"annotations": {MODE: "ignore"}}, {}, []),
    "misspelt-mode": ({"annotations": {MODE: "Ignore"}}, {}, [GATE]),
    "pinned": ({}, {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, [GATE]),
}


async def test_the_gate_policy_holds_the_pods_that_are_decided_about(
    api: ApiClient, apply_policies: ApplyPolicies
) -> None:
    """Pods as authors and controllers write them. That the webhook holds the same: test_settings_alike.py."""
    await apply_policies("gate")
    await until_held(api)
    for name, (metadata, spec, gates) in CASES.items():
        case = pod(name, IMAGE, spec=spec)
        changed = {**case["metadata"], **metadata}
        case["metadata"] = {key: value for key, value in changed.items() if value is not None}
        made = await dry_run(api, case)
        assert (name, gates_of(made)) == (name, gates)
        assert (made["metadata"].get("labels", {}).get(LABEL) == "true") is (GATE in gates)


# --- what our own account may do, under its real token and with more rights than it has


WITH_PODS = ("pods", *(f"pods/{part}" for part in ("status", "binding", "eviction", "ephemeralcontainers", "resize")))
ALL_OF_PODS: KubernetesObject = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "all-of-pods"},
    "rules": [
        {"apiGroups": [""], "resources": [*WITH_PODS, "bindings"], "verbs": ["*"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "verbs": ["*"]},
    ],
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
    """A client with the token of the shipped webhook's ServiceAccount, whom roles allow everything here."""
    path = await write_account(api, control_plane.kubeconfig, tmp_path / "account.kubeconfig", Mode.WEBHOOK)
    for manifest in (ALL_OF_PODS, BOUND_TO_US):
        await api.apply(manifest)
    async with connect(path) as client:
        yield client
    for manifest in (BOUND_TO_US, ALL_OF_PODS):
        await api.delete(manifest["kind"], "all-of-pods", "", manifest["apiVersion"])


def requirement(*architectures: str) -> KubernetesObject:
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
    return [{"op": operation, "path": path, "value": value}]


def drop(path: str) -> Any:
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
        lambda: said(account, "PATCH", f"{path}?dryRun=All", PATCHES["the image"]), lambda found: not found
    )
    await apply_policies("own-account")
    await until_denied(account, path)

    refused = {}
    for what, changes in PATCHES.items():
        refused[what] = await said(account, "PATCH", path, changes)
    for what, (method, other, body) in requests_of(where).items():
        refused[what] = await said(account, method, other, body)
    assert {what: why for what, why in refused.items() if DENIED not in why} == {}
    assert len(refused) >= 20
    world.figure(f"own account: {len(refused)} requests refused by the policy under our ServiceAccount's token")
    after = await api.get("Pod", "held", where)
    assert after == before

    probe = {**TEMPLATE, "metadata": {"name": "made", "namespace": where}}
    await account.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", probe)
    patch = release(before)
    released = await account.request("PATCH", path, patch, content_type=STRATEGIC)
    assert gates_of(released) == [FOREIGN]
    assert LABEL not in released["metadata"]["labels"]
    assert released["spec"]["affinity"] == requirement("arm64")
    assert TOLERATION in released["spec"]["tolerations"]
    await api.request("PATCH", path, drop("/metadata/finalizers"), content_type=JSON_PATCH)  # others may what they may


async def until_denied(account: ApiClient, path: str) -> None:
    await eventually(
        lambda: said(account, "PATCH", f"{path}?dryRun=All", PATCHES["the image"]),
        lambda found: "ValidatingAdmissionPolicy" in found,
    )


async def said(account: ApiClient, method: str, path: str, body: Any) -> str:
    return await refusal(account, path, body, method, JSON_PATCH if isinstance(body, list) else "")


async def test_our_account_lets_minimal_pods_go_in_every_form(
    api: ApiClient, account: ApiClient, apply_policies: ApplyPolicies, world: World
) -> None:
    """Pods without labels, annotations, affinity and tolerations of their own: each form of a release is allowed."""
    await apply_policies("own-account")
    where = await world.namespace()
    bare = {"spec": {"schedulingGates": [{"$patch": "delete", **GATE}]}, "metadata": {"labels": {LABEL: None}}}
    changes = [*set_at("/spec/affinity", requirement("amd64"), "add"), *drop("/spec/schedulingGates")]
    forms: dict[str, Callable[[KubernetesObject], tuple[str, Any, str]]] = {
        "whole": lambda made: ("PATCH", release(made), STRATEGIC),
        "gate alone": lambda _: ("PATCH", bare, STRATEGIC),
        "nothing": lambda made: ("PATCH", {"metadata": {"uid": made["metadata"]["uid"]}}, STRATEGIC),
        "json patch": lambda _: ("PATCH", changes, JSON_PATCH),
        "put": lambda made: ("PUT", released(made), "application/json"),
    }
    for number, (form, request) in enumerate(forms.items()):
        made = await api.create(pod(f"held-{number}", IMAGE, namespace=where, spec={"schedulingGates": [GATE]}))
        path = f"/api/v1/namespaces/{where}/pods/held-{number}"
        await until_denied(account, path)
        method, body, content_type = request(made)
        found = await account.request(method, path, body, content_type=content_type)
        assert (form, gates_of(found)) == (form, [GATE] if form == "nothing" else [])


def released(made: KubernetesObject) -> KubernetesObject:
    spec = {key: value for key, value in made["spec"].items() if key != "schedulingGates"}
    return {**made, "spec": {**spec, "affinity": requirement("amd64")}}


# --- what it may do with the webhook's configuration

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CLIENT = {"service": {"name": "ours", "namespace": "default", "path": "/admission/pods", "port": 443}}


def webhook(name: str) -> KubernetesObject:
    return {
        "name": f"{name}.multiarch-extender.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": CLIENT,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["podtemplates"], "operations": ["UPDATE"]}],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "matchConditions": [{"name": "never", "expression": "false"}],
    }


OTHER = {"apiVersion": ADMISSIONREGISTRATION, "kind": "MutatingWebhookConfiguration", "metadata": {"name": "other"}}
TRUSTED = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
TRUST = set_at("/webhooks/0/clientConfig/caBundle", TRUSTED, "add")
OF_CONFIGURATION: dict[str, Any] = {
    "the Service": set_at("/webhooks/0/clientConfig/service/name", "evil"),
    "a path": set_at("/webhooks/1/clientConfig/service/path", "/evil"),
    "a URL in its place": set_at("/webhooks/0/clientConfig", {"url": "https://evil.example.com"}),
    "the Service beside caBundle": [*TRUST, *set_at("/webhooks/0/clientConfig/service/name", "evil")],
    "the objects": set_at("/webhooks/0/rules/0/resources", ["*"]),
    "the policy": set_at("/webhooks/0/failurePolicy", "Fail"),
    "the namespaces": set_at("/webhooks/0/namespaceSelector/matchLabels", {"a": "b"}, "add"),
    "conditions": drop("/webhooks/0/matchConditions"),
    "a name": set_at("/webhooks/0/name", "evil.multiarch-extender.io"),
    "one more": set_at("/webhooks/-", webhook("evil"), "add"),
    "one less": drop("/webhooks/1"),
    "a label": set_at("/metadata/labels", {"a": "b"}, "add"),
    "a finalizer": set_at("/metadata/finalizers", ["example.com/hold"], "add"),
}


async def test_our_account_may_write_whom_a_webhook_trusts_and_nothing_else(
    api: ApiClient, account: ApiClient, apply_policies: ApplyPolicies
) -> None:
    """Roles cannot say that: a patch of caBundle and one of the address take the same right."""
    path = f"{CONFIGURATIONS}/ours"
    made: KubernetesObject = {**OTHER, "metadata": {"name": "ours"}, "webhooks": [webhook("pods"), webhook("updates")]}
    await api.apply(made)
    try:
        await apply_policies("own-account")
        await eventually(lambda: said(account, "PATCH", f"{path}?dryRun=All", OF_CONFIGURATION["the policy"]), bool)
        refused = {what: await said(account, "PATCH", path, changes) for what, changes in OF_CONFIGURATION.items()}
        refused["deletion"] = await said(account, "DELETE", path, None)
        refused["deletion of all"] = await said(account, "DELETE", CONFIGURATIONS, None)
        refused["creation"] = await said(account, "POST", CONFIGURATIONS, OTHER)
        assert {what: why for what, why in refused.items() if DENIED not in why} == {}
        trusting = [{"name": each["name"], "clientConfig": {"caBundle": TRUSTED}} for each in made["webhooks"]]
        found = await account.request("PATCH", path, {"webhooks": trusting}, content_type=STRATEGIC)
        assert [each["clientConfig"] for each in found["webhooks"]] == [{**CLIENT, "caBundle": TRUSTED}] * 2
        found = await account.request("PATCH", path, drop("/webhooks/0/clientConfig/caBundle"), content_type=JSON_PATCH)
        assert found["webhooks"][0]["clientConfig"] == CLIENT
    finally:
        await api.delete("MutatingWebhookConfiguration", "ours", "", ADMISSIONREGISTRATION)
