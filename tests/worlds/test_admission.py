"""The played admission, against what was seen of kube-apiserver 1.36.3: order, second pass, failure policies."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from testbed.memory_http import Request, Response, serve_http
from testbed.memory_network import run_in_memory
from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiServer
from tests.worlds.api_storage import decode, encode
from tests.worlds.installation import account, install, put_in_place, refuse_patches
from tests.worlds.plan import KubernetesConfig, Mode
from tests.worlds.trace import Trace

T = TypeVar("T")
GATE = "multiarch-extender.io/platforms"
GATED = "multiarch-extender.io/gated"
MODE = "multiarch-extender.io/mode"
HOST = "10.0.1.1"
BINDING = "multiarch-gate"
KNOWN, UNKNOWN = "registry.example.com/known:1", "registry.example.com/unknown:1"


class Webhook:
    """Stands for our service: lifts the gate of pods whose images are all known, else sees that they have it."""

    def __init__(self, network: Any) -> None:
        self.reviews: list[Document] = []
        self.answers = True
        self.status = 200
        self.seconds = 0.0
        self.patch: list[Document] | None = None
        self.refusal: Document | None = None
        serve_http(network, HOST, 8443, self._answer)

    async def _answer(self, request: Request) -> Response:
        review = decode(request.body)
        self.reviews.append(review["request"])
        await asyncio.sleep(self.seconds if self.answers else 3600)
        response: Document = {"uid": review["request"]["uid"], "allowed": True, "warnings": ["look", "look"]}
        if self.refusal:
            response |= {"allowed": False, "status": self.refusal}
        patch = self.patch if self.patch is not None else _patch(review["request"]["object"])
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(encode(patch)).decode()}
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return Response(self.status, encode(answer))


def _patch(pod: Document) -> list[Document]:
    knows = all(each["image"] == KNOWN for each in pod["spec"]["containers"])
    gates = pod["spec"].get("schedulingGates") or []
    if knows and gates:
        return [{"op": "remove", "path": "/spec/schedulingGates"}]
    if not knows and not gates:
        return [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
    return []


class Installed:
    """An API server with what deploy/ ships, and a stand-in of our service."""

    def __init__(self, network: Any, mode: Mode, kubernetes: KubernetesConfig, settings: tuple[str, ...]) -> None:
        self.network = network
        self.api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        self.webhook = Webhook(network)
        self.hosts = [HOST]
        self.api.admission.endpoints = lambda: self.hosts
        install(self.api, mode, settings=settings, kubernetes=kubernetes)
        if mode.has_policy:
            spec = {"policyName": "multiarch-gate"}
            put_in_place(self.api, "MutatingAdmissionPolicyBinding", {"metadata": {"name": BINDING}, "spec": spec})
            self.api.admission.refresh()

    async def create(self, image: str = KNOWN, namespace: str = "default", **metadata: Any) -> Document:
        spec = {"containers": [{"name": "app", "image": image}], **metadata.pop("spec", {})}
        pod = {"metadata": {"generateName": "x-", "namespace": namespace, **metadata}, "spec": spec}
        return await self.api.create("Pod", pod, user="author")

    @property
    def calls(self) -> int:
        return len(self.webhook.reviews)


def play(
    script: Callable[[Installed], Awaitable[T]],
    mode: Mode = Mode.BOTH,
    kubernetes: KubernetesConfig = KubernetesConfig(),  # noqa: B008 - frozen
    settings: tuple[str, ...] = (),
) -> T:
    async def main(network: Any) -> T:
        return await script(Installed(network, mode, kubernetes, settings))

    return run_in_memory(main)


def is_held(pod: Document) -> bool:
    return {"name": GATE} in (pod["spec"].get("schedulingGates") or [])


@pytest.mark.parametrize(
    ("image", "injects", "held", "calls"),
    [
        (KNOWN, "", False, 1),
        (UNKNOWN, "", True, 1),
        (KNOWN, KNOWN, False, 2),
        (KNOWN, UNKNOWN, True, 2),
    ],
)
def test_webhook_lifts_the_policys_gate_and_is_called_again_after_an_injector(
    image: str, injects: str, held: bool, calls: int
) -> None:
    async def script(installed: Installed) -> tuple[bool, int]:
        return is_held(await installed.create(image)), installed.calls

    assert play(script, kubernetes=KubernetesConfig(injects=injects)) == (held, calls)


@pytest.mark.parametrize("fault", ["refused", "silent", "no endpoints", "404", "500"])
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_failure_policy_says_what_an_outage_does(fault: str, policy: str) -> None:
    async def script(installed: Installed) -> tuple[bool, float]:
        if fault == "refused":
            installed.network.refuse(HOST, True)
        elif fault == "no endpoints":
            installed.hosts.clear()
        elif fault == "404":
            installed.webhook.status = 404
        elif fault == "silent":
            installed.webhook.answers = False
        else:
            installed.webhook.status = 500
        pod = await installed.create()
        return is_held(pod), installed.network.loop.time()

    config = KubernetesConfig(webhook_failure_policy=policy, webhook_timeout_seconds=2)
    if policy == "Fail":
        with pytest.raises(ApiError, match="failed calling webhook") as refusal:
            play(script, kubernetes=config)
        assert refusal.value.code == 500
        return
    held, seconds = play(script, kubernetes=config)
    assert held
    assert seconds == (2.0 if fault == "silent" else 0.0)


def test_patch_that_does_not_apply_is_an_error_whatever_the_failure_policy_is() -> None:
    async def script(installed: Installed) -> None:
        installed.webhook.patch = [{"op": "remove", "path": "/spec/missing"}]
        await installed.create()

    with pytest.raises(ApiError) as refusal:
        play(script)

    assert refusal.value.code == 500


def test_denial_has_the_webhooks_name_code_and_warnings() -> None:
    async def script(installed: Installed) -> None:
        installed.webhook.refusal = {"code": 422, "message": "no node can run it"}
        await installed.create()

    with pytest.raises(ApiError, match="denied the request: no node can run it") as refusal:
        play(script, mode=Mode.WEBHOOK)

    assert refusal.value.code == 422
    assert refusal.value.warnings == ["look"]


def test_review_of_a_controllers_pod_has_no_name() -> None:
    async def script(installed: Installed) -> Document:
        await installed.create()
        return installed.webhook.reviews[0]

    review = play(script, mode=Mode.WEBHOOK)

    assert (review["name"], review["operation"], review["oldObject"]) == ("", "CREATE", None)
    assert review["object"]["spec"]["schedulerName"] == "default-scheduler"
    assert "uid" not in review["object"]["metadata"]


DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("held", "metadata"),
    [
        (True, {}),
        (True, {"annotations": {MODE: "nonsense"}}),
        (False, {"annotations": {MODE: "ignore"}}),
        (False, {"annotations": {MODE: "observe"}}),
        (False, {"annotations": {"kubernetes.io/config.mirror": "x"}}),
        (False, {"ownerReferences": DAEMON}),
        (False, {"namespace": "kube-system"}),
        (False, {"namespace": "observed"}),
        (True, {"namespace": "observed", "annotations": {MODE: "enforce"}}),
        (False, {"spec": {"priorityClassName": "system-node-critical"}}),
        (False, {"spec": {"nodeName": "n"}}),
    ],
)
def test_policy_holds_what_its_conditions_say(held: bool, metadata: Document) -> None:
    async def script(installed: Installed) -> Document:
        observed = {"metadata": {"name": "observed", "annotations": {MODE: "observe"}}}
        put_in_place(installed.api, "Namespace", observed)
        return await installed.create(UNKNOWN, **metadata)

    pod = play(script, mode=Mode.POLICY)

    assert is_held(pod) is held
    assert ((pod["metadata"].get("labels") or {}).get(GATED) == "true") is held


@pytest.mark.parametrize(
    ("held", "settings", "more"),
    [
        (False, ('placement.mode="observe"',), {}),
        (True, ('placement.mode="observe"',), {"annotations": {MODE: "enforce"}}),
        (False, ('placement.runtime_classes={"wasm":[]}',), {"spec": {"runtimeClassName": "wasm"}}),
        (
            False,
            ('admission.gate.exempt_priority_classes=["storage"]',),
            {"spec": {"priorityClassName": "storage"}},
        ),
    ],
)
def test_policy_has_the_meaning_of_the_settings(held: bool, settings: tuple[str, ...], more: Document) -> None:
    async def script(installed: Installed) -> Document:
        put_in_place(installed.api, "RuntimeClass", {"metadata": {"name": "wasm"}})
        put_in_place(installed.api, "PriorityClass", {"metadata": {"name": "storage"}, "value": 1})
        return await installed.create(UNKNOWN, **more)

    assert is_held(play(script, mode=Mode.POLICY, settings=settings)) is held


UNGATED: Document = {
    "metadata": {"labels": {GATED: None}, "annotations": {"multiarch-extender.io/added": "{}"}},
    "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}], "affinity": {"nodeAffinity": {}}},
}


ANYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]
REFUSES_ALL: Document = {
    "metadata": {"name": "all"},
    "spec": {
        "matchConstraints": {"resourceRules": ANYTHING},
        "validations": [{"expression": "false", "message": "nothing may change"}],
    },
}
POLICY_OF_NOBODY = {"spec": {"policyName": "nobodys"}}


def test_nothing_may_lock_out_its_own_undoing() -> None:
    async def script(installed: Installed) -> list[int]:
        api, installed.webhook.patch = installed.api, []
        webhook = {
            "name": "all",
            "rules": ANYTHING,
            "failurePolicy": "Fail",
            "clientConfig": {"service": {"path": "/"}},
        }
        put_in_place(api, "MutatingWebhookConfiguration", {"metadata": {"name": "all"}, "webhooks": [webhook]})
        api.admission.refresh()
        await api.create("MutatingWebhookConfiguration", {"metadata": {"name": "x"}, "webhooks": []}, user="admin")
        found = [installed.calls]
        await api.create("ConfigMap", {"metadata": {"name": "x"}}, user="admin")
        found.append(installed.calls)
        binding = {"policyName": "all", "validationActions": ["Deny"]}
        put_in_place(api, "ValidatingAdmissionPolicy", REFUSES_ALL)
        put_in_place(api, "ValidatingAdmissionPolicyBinding", {"metadata": {"name": "all"}, "spec": binding})
        api.admission.refresh()
        for kind in ("MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration"):
            try:
                await api.create(kind, {"metadata": {"name": "y"}, **POLICY_OF_NOBODY}, user="admin")
                found.append(201)
            except ApiError as exc:
                found.append(exc.code)
        return found

    assert play(script, mode=Mode.DEFAULT) == [0, 1, 201, 422]


def test_change_is_made_again_where_another_one_came_between() -> None:
    async def script(installed: Installed) -> tuple[Document, int]:
        annotations = {"multiarch-extender.io/added": "{}"}
        pod = await installed.create(UNKNOWN, annotations=annotations)
        installed.webhook.patch, installed.webhook.seconds = [], 1.0
        before = installed.calls
        selector = {"spec": {"nodeSelector": {"a": "b"}}}
        changing = asyncio.create_task(
            installed.api.patch("Pod", "default", pod["metadata"]["name"], selector, MERGE_PATCH, user="one")
        )
        await asyncio.sleep(0.5)
        installed.api.set_status("Pod", "default", pod["metadata"]["name"], {"phase": "Unknown"})
        return await changing, installed.calls - before

    pod, calls = play(script, mode=Mode.WEBHOOK)

    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert pod["status"]["phase"] == "Unknown"
    assert calls == 2


@pytest.mark.parametrize(
    ("why", "patch"),
    [
        ("", UNGATED),
        ("changes nothing in a pod's spec but", {"spec": {"activeDeadlineSeconds": 5}}),
        (
            "takes no scheduling gate off",
            {"spec": {"schedulingGates": [{"$patch": "delete", "name": "other.io/gate"}]}},
        ),
        ("changes no annotations and labels", {"metadata": {"labels": {"theirs": "changed"}}}),
        ("changes nothing in metadata", {"metadata": {"finalizers": ["a.io/b"]}}),
    ],
)
def test_policy_holds_our_own_account_to_what_it_does(why: str, patch: Document) -> None:
    async def script(installed: Installed) -> str:
        gates = {"schedulingGates": [{"name": "other.io/gate"}]}
        pod = await installed.create(UNKNOWN, labels={"theirs": "x"}, spec=gates)
        name = pod["metadata"]["name"]
        user = account(Mode.POLICY)
        try:
            await installed.api.patch("Pod", "default", name, patch, STRATEGIC_MERGE_PATCH, user=user)
        except ApiError as exc:
            return str(exc)
        return "200"

    found = play(script, mode=Mode.POLICY)

    assert found.startswith("422" if why else "200")
    assert why in found


def test_cluster_may_refuse_to_have_a_held_pod_narrowed() -> None:
    async def script(installed: Installed) -> list[int]:
        name = (await installed.create(UNKNOWN))["metadata"]["name"]
        codes = []
        for on in (True, False):
            refuse_patches(installed.api, on)
            try:
                await installed.api.patch(
                    "Pod", "default", name, {"spec": {"affinity": {"nodeAffinity": {}}}}, MERGE_PATCH, user="x"
                )
                codes.append(200)
            except ApiError as exc:
                codes.append(exc.code)
        return codes

    assert play(script, mode=Mode.POLICY) == [422, 200]


def test_binding_takes_effect_about_a_second_after_it_is_made() -> None:
    async def script(installed: Installed) -> list[bool]:
        api = installed.api
        api.storage.remove("MutatingAdmissionPolicyBinding", ("", BINDING))
        await asyncio.sleep(2)
        found = [is_held(await installed.create(UNKNOWN))]
        binding = {"metadata": {"name": BINDING}, "spec": {"policyName": "multiarch-gate"}}
        await api.create("MutatingAdmissionPolicyBinding", binding, user="us")
        found.append(is_held(await installed.create(UNKNOWN)))
        await asyncio.sleep(1.5)
        return [*found, is_held(await installed.create(UNKNOWN))]

    assert play(script, mode=Mode.POLICY) == [False, False, True]


def test_shipped_binding_holds_probes_alone() -> None:
    async def script(installed: Installed) -> list[bool]:
        install(installed.api, Mode.POLICY)
        probe = {"multiarch-extender.io/probe": "true"}
        return [is_held(await installed.create(UNKNOWN, labels=labels)) for labels in ({}, probe)]

    assert play(script, mode=Mode.POLICY) == [False, True]
