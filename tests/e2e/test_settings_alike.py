"""A setting means one thing: webhook, policy and controller treat every pod alike, on the real API server.

Pods are drawn at random from what settings and decisions depend on. Each outlet is asked about all of them, under each
of some settings; what the API server would store is compared.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import chosen_kubernetes
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, namespace, pod
from tests.e2e.gates import GATED
from tests.e2e.installed_chart import InstalledChart, Values, installed
from tests.e2e.policies import GATE, dry_run, gates_of, has_mutating_policies

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

PODS, AT_ONCE, FEWEST = 200, 16, 10
SETTLE_SECONDS = 60.0
ADMISSION = "admissionregistration.k8s.io/v1"
OUR_SCHEDULER = "multiarch-scheduler"
MODE, UNKNOWN = "multiarch-extender.io/mode", "multiarch-extender.io/unknown"
LEFT_OUT, SYSTEM = "left-out", "kube-public"
NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "observed": {MODE: "observe"},
    "ignored": {MODE: "ignore"},
    "enforced": {MODE: "enforce"},
    "mistyped": {MODE: "Observe"},
    "passing": {UNKNOWN: "pass"},
    LEFT_OUT: {},
}
CONDITION = {"name": "not-of-a-team", "expression": "!('team' in object.metadata.?labels.orValue({}))"}
EXEMPT: Values = {"admission": {"gate": {"exempt_priority_classes": ["registry"]}}}
SETTINGS: Mapping[str, Values] = {
    "as shipped": {},
    "observe": {"config": {"placement": {"mode": "observe"}}},
    "RuntimeClasses": {"config": {"placement": {"runtime_classes": {"wasm": [], "spin": [], "kata": ["linux/amd64"]}}}},
    "exempt classes": {"config": EXEMPT},
    "namespaces": {"webhook": {"excludeNamespaces": [LEFT_OUT]}},
    "conditions": {"webhook": {"matchConditions": [CONDITION]}},
    "failurePolicy Fail": {"webhook": {"failurePolicy": "Fail"}, "config": EXEMPT},
    "all at once": {
        "config": {"placement": {"mode": "observe", "runtime_classes": {"wasm": []}}, **EXEMPT},
        "webhook": {"excludeNamespaces": [LEFT_OUT], "matchConditions": [CONDITION]},
    },
}
USUAL = ("as shipped", "all at once")


def owner(kind: str, *, controls: bool) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": f"uid-of-{kind}", "controller": controls}
    return {"ownerReferences": [reference]}


OWNERS = (owner("DaemonSet", controls=True), owner("DaemonSet", controls=False), owner("ReplicaSet", controls=True))


def drawn_pods(image: str) -> list[KubernetesObject]:
    """The same pods each time; most have one or two properties that count."""
    draw = random.Random(34)

    def some(*choices: Any, share: float = 0.25) -> Any:
        return draw.choice(choices) if draw.random() < share else None

    found = []
    for number in range(PODS):
        annotations = {
            MODE: some(*["enforce"] * 4, "observe", "ignore", "IGNORE", "", share=0.5),
            UNKNOWN: some("pass", "retry", "assume", "hold"),
            "kubernetes.io/config.source": some("file", share=0.1),
        }
        spec = {
            "priorityClassName": some("registry", "ordinary", "system-cluster-critical", "system-node-critical"),
            "runtimeClassName": some("wasm", "kata"),
            "schedulerName": some("default-scheduler", "another", OUR_SCHEDULER),
            "nodeName": some("amd64", share=0.1),
        }
        made = pod(
            f"p-{number}",
            image,
            namespace=draw.choice([*NAMESPACES, *["plain"] * 4, *["enforced"] * 2, SYSTEM]),
            annotations={key: value for key, value in annotations.items() if value is not None},
            labels={"team": "a"} if draw.random() < 0.2 else {},
            spec={key: value for key, value in spec.items() if value is not None},
        )
        if spec["nodeName"] and draw.random() < 0.5:
            made["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
        made["metadata"] |= some(*OWNERS) or {}
        found.append(made)
    return found


@pytest.fixture
async def around(api: ApiClient) -> AsyncIterator[None]:
    if not await has_mutating_policies(api):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    for name, annotations in NAMESPACES.items():
        made = namespace(name)
        made["metadata"] |= {"annotations": dict(annotations)}
        made["metadata"]["labels"]["multiarch-extender.io/scheduler"] = OUR_SCHEDULER
        await api.apply(made)
    classes: list[KubernetesObject] = [
        *({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7}
          for name in ("registry", "ordinary")),
        *({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
          for name in ("wasm", "kata")),
    ]  # fmt: skip
    for each in classes:
        await api.apply(each)
    yield
    for each in classes:
        await api.delete(each["kind"], each["metadata"]["name"], "", each["apiVersion"])


async def stored(api: ApiClient, pods: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(made: KubernetesObject) -> KubernetesObject:
        async with turns:
            return await dry_run(api, made)

    return list(await asyncio.gather(*map(one, pods)))


async def until(api: ApiClient, image: str, holds: Callable[[KubernetesObject], bool]) -> None:
    """Returns when that holds of a new pod that nothing exempts."""
    probe = pod("probe", image, namespace="plain", annotations={MODE: "enforce"})
    await eventually(
        lambda: dry_run(api, probe), holds, despite=ApiError
    )  # which `failurePolicy: Fail` makes of a wait


def is_held(found: KubernetesObject) -> bool:
    return GATE in gates_of(found)


def may_wait(made: KubernetesObject) -> bool:
    """Whether the pod's author, and its namespace's, leave it to the settings what becomes of unknown images."""
    of_namespace = NAMESPACES.get(made["metadata"]["namespace"], {})
    words = [annotations.get(UNKNOWN) for annotations in (made["metadata"]["annotations"], of_namespace)]
    chosen = next((word for word in words if word in ("pass", "retry", "assume")), "retry")
    return chosen == "retry"


@asynccontextmanager
async def running(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, folder: Path, values: Values
) -> AsyncIterator[InstalledChart]:
    async with (
        installed(api, control_plane.kubeconfig, registry, folder, values) as chart,
        chart.replicas(1),
    ):
        yield chart


@pytest.mark.usefixtures("around")
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in USUAL else pytest.mark.slow) for each in SETTINGS]
)
async def test_a_pod_is_held_by_every_outlet_or_by_none(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path, name: str
) -> None:
    """Of an image that is not known. The policy knows none, and holds what `unknown: pass` lets go at once too."""
    async with EmbeddedRegistry() as registry:
        image = f"{registry.host}/team/never:1"
        pods, settings = drawn_pods(image), SETTINGS[name]
        webhook = with_config(settings, {"admission": {"unknown": "gate"}})
        async with running(api, control_plane, registry, tmp_path / "webhook", webhook) as chart:
            await chart.lead_to()
            await until(api, image, is_held)
            by_webhook = [is_held(each) for each in await stored(api, pods)]
        policy = {**settings, "modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}}
        async with running(api, control_plane, registry, tmp_path / "policy", policy) as chart:
            await until(api, image, is_held)
            by_policy = [is_held(each) for each in await stored(api, pods)]
            gated = [(number, made) for number, made in enumerate(pods) if can_be_gated(made, settings)]
            by_controller = await held_by_controller(api, [made for _, made in gated], [
                by_policy[number] and may_wait(made) for number, made in gated
            ])  # fmt: skip
    print(f"{name}: {sum(by_policy)} of {PODS} held by the policy, {sum(by_webhook)} by the webhook, "
          f"{sum(by_controller)} of {len(gated)} by the controller")  # fmt: skip
    assert min(sum(by_webhook), PODS - sum(by_policy)) >= FEWEST
    wanted = [held and may_wait(made) for held, made in zip(by_policy, pods, strict=True)]
    assert different(pods, by_webhook, wanted) == []
    assert different([made for _, made in gated], by_controller, [by_webhook[number] for number, _ in gated]) == []


def with_config(settings: Values, config: Values) -> Values:
    before = settings.get("config", {})
    merged = {name: {**before.get(name, {}), **section} for name, section in config.items()}
    return {**settings, "config": {**before, **merged}}


def different(pods: Sequence[KubernetesObject], one: Sequence[Any], other: Sequence[Any]) -> list[str]:
    """The pods that two outlets treat differently, with what counts of them."""
    return [
        f"{made['metadata']}, {made['spec']}: {left}, {right}"
        for made, left, right in zip(pods, one, other, strict=True)
        if left != right
    ]


def can_be_gated(made: KubernetesObject, settings: Values) -> bool:
    """Whether a pod that has our gate may be created, in a place where the API server has us look after pods."""
    webhook = settings.get("webhook", {})
    is_out = made["metadata"]["namespace"] in (SYSTEM, *webhook.get("excludeNamespaces", ()))
    is_out = is_out or ("matchConditions" in webhook and "team" in made["metadata"]["labels"])
    return not is_out and "nodeName" not in made["spec"]


async def held_by_controller(api: ApiClient, pods: Sequence[KubernetesObject], expected: Sequence[bool]) -> list[bool]:
    """Which of these pods the controller leaves held, created with our gate and label; it is given time to let go."""
    for made in pods:
        labels = {**made["metadata"]["labels"], **GATED}
        gated = {**made, "metadata": {**made["metadata"], "labels": labels}}
        await api.create({**gated, "spec": {**made["spec"], "schedulingGates": [GATE]}})

    async def held() -> list[bool]:
        places = [(made["metadata"]["name"], made["metadata"]["namespace"]) for made in pods]
        return [is_held(await api.get("Pod", *place)) for place in places]

    with suppress(TimeoutError):  # what is found then is the failure
        await eventually(held, lambda found: found == list(expected), seconds=SETTLE_SECONDS)
    # Once a pod that came later is let go, those before it are looked at once more.
    await api.create(pod("last", "a:1", namespace="plain", annotations={MODE: "ignore"}, labels=GATED,
                         spec={"schedulingGates": [GATE]}))  # fmt: skip
    await eventually(lambda: api.get("Pod", "last", "plain"), lambda found: not is_held(found))
    await api.delete("Pod", "last", "plain")
    found = await held()
    for made in pods:
        await api.delete("Pod", made["metadata"]["name"], made["metadata"]["namespace"])
    return found


@pytest.mark.usefixtures("around")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("as shipped", marks=pytest.mark.slow),
        pytest.param("observe", marks=pytest.mark.slow),
        pytest.param("RuntimeClasses", marks=pytest.mark.slow),
        "all at once",
    ],
)
async def test_a_pod_is_named_a_scheduler_by_every_outlet_or_by_none(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path, name: str
) -> None:
    """By the second scheduler's webhook, and by the policy."""
    second: dict[str, Any] = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}}
    values = {**SETTINGS[name], "modes": second}
    async with EmbeddedRegistry() as registry, AsyncExitStack() as stack:
        image = f"{registry.host}/team/never:1"
        pods = drawn_pods(image)
        chart = await stack.enter_async_context(running(api, control_plane, registry, tmp_path / "webhooks", values))
        await chart.lead_to()
        (configuration,) = (each for each in chart.objects if each["kind"] == "MutatingWebhookConfiguration")
        await until(api, image, is_named)
        webhook = [name_of(each) for each in await stored(api, pods)]
        nobody: dict[str, Any] = {"webhooks": []}
        await api.patch(configuration["kind"], configuration["metadata"]["name"], nobody, api_version=ADMISSION)
        await until(api, image, lambda each: not is_named(each))
        second["secondScheduler"]["namingPolicy"] = True
        rendered = objects_of(render(values, kubernetes=chosen_kubernetes().version))
        policies = [each for each in rendered if each["metadata"]["name"].endswith("-scheduler-name")]
        for each in policies:
            await api.apply(each)
            stack.push_async_callback(api.delete, each["kind"], each["metadata"]["name"], "", ADMISSION)
        await until(api, image, is_named)
        policy = [name_of(each) for each in await stored(api, pods)]
    print(f"{name}: {policy.count(OUR_SCHEDULER)} of {PODS} have the scheduler's name")
    assert FEWEST <= policy.count(OUR_SCHEDULER) <= PODS - FEWEST
    assert different(pods, webhook, policy) == []


@pytest.mark.usefixtures("around")
async def test_the_second_schedulers_webhook_leaves_held_what_a_policy_holds(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """Under the setting that the chart gives it beside `modes.policy`."""
    second = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}}
    values = {"modes": second, "config": {"admission": {"unknown": "gate"}}}
    policy = {"modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}}
    async with EmbeddedRegistry() as registry, AsyncExitStack() as stack:
        image = f"{registry.host}/team/never:1"
        chart = await stack.enter_async_context(running(api, control_plane, registry, tmp_path / "second", values))
        await chart.lead_to()
        await until(api, image, is_named)
        objects = objects_of(render(policy, kubernetes=chosen_kubernetes().version))
        (gate,) = (each for each in objects if each["kind"] == "MutatingAdmissionPolicy")
        name = gate["metadata"]["name"]
        binding: KubernetesObject = {
            "apiVersion": ADMISSION,
            "kind": f"{gate['kind']}Binding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        }
        for each in (gate, binding):
            await api.apply(each)
            stack.push_async_callback(api.delete, each["kind"], name, "", ADMISSION)
        # Where no webhook sees the pod.
        await eventually(lambda: dry_run(api, pod("probe", image)), is_held)
        found = await dry_run(api, pod("seen", image, namespace="plain"))
    assert is_named(found)
    assert is_held(found)


def is_named(found: KubernetesObject) -> bool:
    return name_of(found) == OUR_SCHEDULER


def name_of(found: KubernetesObject) -> str:
    return str(found["spec"]["schedulerName"])
