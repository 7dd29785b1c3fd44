"""Held pods in each way to hold them: by the policy alone, by the webhook alone, and by both.

Every pod leans to an architecture on which its image does not run, so one that is let go unexamined stands wrongly.
kube-scheduler knows no extender.
"""

import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from testbed.api_client import ADMISSIONREGISTRATION
from testbed.certificates import Authority
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, kept_to, pod, workload
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.gates import OTHERS, observed, start_controller, start_holding
from tests.e2e.load import leaning_to
from tests.e2e.policies import GATE, ApplyPolicies, dry_run, gates_of, until_held
from tests.e2e.world import World, refusal_of

pytestmark = pytest.mark.e2e

OF_A_SHAPE = 12
REASON = "multiarch-extender.io/reason"
FOREIGN = {"name": "example.com/quota"}
ARCHITECTURE = "kubernetes.io/arch"


def required(*terms: KubernetesObject) -> KubernetesObject:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
        }
    }


def term(key: str, *values: str) -> KubernetesObject:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def field(operator: str, node: str) -> KubernetesObject:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [node]}]}


# Specs by the architecture on which the image runs. Of all of them the pods can stand on such a node.
SHAPES: dict[str, Callable[[str], KubernetesObject]] = {
    "none": lambda runs: {},
    "preferred": lambda runs: leaning_to(OTHERS[runs]),
    "empty-term": lambda runs: required({}, term("kubernetes.io/os", "linux")),
    "fields-only": lambda runs: required(field("NotIn", f"{runs}-0")),
    "several-terms": lambda runs: required(term(ARCHITECTURE, "amd64"), term(ARCHITECTURE, "arm64")),
    "both-kinds": lambda runs: required(field("NotIn", f"{runs}-0"), term(ARCHITECTURE, OTHERS[runs], runs)),
    "selector": lambda runs: {"nodeSelector": {"kubernetes.io/os": "linux"}, **leaning_to(OTHERS[runs])},
    "foreign-gate": lambda runs: {"schedulingGates": [FOREIGN], **leaning_to(OTHERS[runs])},
}
# Of these no node is right.
IMPOSSIBLE: dict[str, Callable[[str], KubernetesObject]] = {
    "foreign-architecture": lambda runs: required(term(ARCHITECTURE, OTHERS[runs])),
    "foreign-selector": lambda runs: {"nodeSelector": {ARCHITECTURE: OTHERS[runs]}},
    "foreign-node": lambda runs: required(field("In", f"{OTHERS[runs]}-0")),
}


@pytest.mark.parametrize("way", ["policy", "webhook", "both"])
async def test_pods_of_every_shape_stand_rightly(apply_policies: ApplyPolicies, world: World, way: str) -> None:
    """Images known before, of a slow registry, and pushed after their pods; every affinity; another owner's gate."""
    await world.create_both(4, cpu="512")
    await (start_controller(world) if way == "policy" else start_holding(world))
    if way != "webhook":
        await apply_policies("own-account", "gate")
    where, images = await world.namespace(), world.images
    await until_held(world.api, where)
    world.registry.delay_seconds = 1.0
    late = {architecture: images.unpushed() for architecture in OTHERS}
    cold = {architecture: images.fresh(architecture) for architecture in OTHERS}
    known = {"amd64": images.amd, "arm64": images.arm}
    kinds = {
        f"{shape}-{number}": (build, (known, cold, late)[number % 3], tuple(OTHERS)[number // 3 % 2])
        for shape, build in {**SHAPES, **IMPOSSIBLE}.items()
        for number in range(OF_A_SHAPE)
    }
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await world.api.create_all(
                pod(name, image_of[runs], namespace=where, cpu="10m", spec=build(runs))
                for name, (build, image_of, runs) in kinds.items()
            )
            await releases.holds(sum(image_of is late for _, image_of, _ in kinds.values()))
            for architecture, image in late.items():
                images.push(image, architecture)
            await releases.are(len(kinds))
            for name in (each for each in kinds if each.startswith("foreign-gate-")):
                assert gates_of(await world.api.get("Pod", name, where)) == [FOREIGN]
                await world.api.patch("Pod", name, {"spec": {"schedulingGates": []}}, where)
            await world.wait_all_bound(where, len(SHAPES) * OF_A_SHAPE)
            refused = await eventually(lambda: refused_pods(world, where), lambda found: len(found) == 3 * OF_A_SHAPE)
    for found in refused:
        assert found["metadata"]["name"].rpartition("-")[0] in IMPOSSIBLE
        assert "is built only for" in found["metadata"]["annotations"][REASON]
    await world.assert_placed_rightly(f"held by {way}", where, len(SHAPES) * OF_A_SHAPE)


async def refused_pods(world: World, where: str) -> list[KubernetesObject]:
    pods = await world.api.list("Pod", where)
    return [
        each for each in pods if refusal_of(each).get("reason") == "Unschedulable" and "nodeName" not in each["spec"]
    ]


async def test_known_images_cost_no_gate_and_no_further_write(apply_policies: ApplyPolicies, world: World) -> None:
    """Beside the policy: what the API server stores is what it answered the creator, affinity included."""
    await world.create_both(1)
    await start_holding(world)
    await apply_policies("own-account", "gate")
    where, images = await world.namespace(), world.images
    await until_held(world.api, where)
    chosen = {images.amd: ["amd64"], images.arm: ["arm64"], images.multi: list[str]()}
    for image in chosen:
        warm = pod("warm", image, namespace=where)
        await eventually(lambda warm=warm: world.review(warm), lambda found: not gates_of(found))  # type: ignore[misc]
    made = await world.api.create_all(
        pod(f"p-{number}-{index}", image, namespace=where) for number in range(10) for index, image in enumerate(chosen)
    )
    later = images.unpushed()  # the controller gets to the pods in their order
    async with observed(world, where) as releases:
        await world.create_pods(where, 1, later, prefix="later")
        images.push(later, "amd64")
        await releases.are(len(made) + 1)
    stored = {each["metadata"]["name"]: each for each in await world.api.list("Pod", where)}
    for each in made:
        found = stored[each["metadata"]["name"]]
        assert found["metadata"]["resourceVersion"] == each["metadata"]["resourceVersion"]
        assert gates_of(found) == []
        assert "multiarch-extender.io/gated" not in found["metadata"].get("labels", {})
        assert kept_to(found["spec"], ARCHITECTURE) == chosen[found["spec"]["containers"][0]["image"]]


async def test_a_webhook_that_does_not_answer_lets_pods_through_and_with_the_policy_they_are_held(
    apply_policies: ApplyPolicies, world: World
) -> None:
    """Without the policy the API server counts them as let through; with it they wait for the controller."""
    where = await world.namespace()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        configuration = webhook_configuration(Mode.WEBHOOK, url, trustme.CA().cert_pem.bytes())
        webhook = configuration["webhooks"][0]
        webhook["timeoutSeconds"] = 1
        before = await passed_over(world, webhook["name"])
        await world.api.apply(configuration)
        try:
            made = pod("p", world.images.amd, namespace=where)
            await eventually(lambda: is_passed_over(world, made, webhook["name"], before))
            await apply_policies("own-account", "gate")
            await until_held(world.api, where)
            assert gates_of(await world.api.create(made)) == [GATE]
        finally:
            await world.unregister_webhook()


async def is_passed_over(world: World, made: KubernetesObject, name: str, before: float) -> bool:
    assert gates_of(await dry_run(world.api, made)) == []
    return await passed_over(world, name) > before


async def passed_over(world: World, name: str) -> float:
    """How often the API server has gone on without that webhook."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(await world.api.metrics())
        if family.name == "apiserver_admission_webhook_fail_open_count"
        for sample in family.samples
        if sample.labels["name"] == name
    )


@asynccontextmanager
async def injecting(world: World, folder: Path, image: str) -> AsyncIterator[None]:
    """A webhook that is called after ours and adds a container of that image to pods labelled `inject`."""

    async def answer(request: web.Request) -> web.Response:
        review = await request.json()
        found = review["request"]["object"]["spec"]["containers"]
        patch = [] if len(found) > 1 else [{"op": "add", "path": "/spec/containers/-", "value": sidecar}]
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch",
                    "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}  # fmt: skip
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    sidecar = {"name": "sidecar", "image": image}
    authority = Authority(folder)
    pair = authority.issue("injector")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    name = "zz-injector"
    webhook = {
        "name": "injector.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{runner.addresses[0][1]}/",
            "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"inject": "yes"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    await world.api.apply(
        {
            "apiVersion": ADMISSIONREGISTRATION,
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
    )
    try:
        yield
    finally:
        await world.unregister_webhook(name)
        await runner.cleanup()


async def test_sidecar_injected_by_a_later_webhook_holds_the_pod(world: World, tmp_path: Path) -> None:
    """The pod's own image is known; the sidecar is pushed later and runs on arm64 alone."""
    await world.create_both(4, cpu="512")
    await start_holding(world)
    where, late, count = await world.namespace(), world.images.unpushed(), 20
    injected = {"inject": "yes"}
    async with injecting(world, tmp_path, late), observed(world, where) as releases:
        with world.default_scheduler(""):
            probe = pod("probe", world.images.multi, namespace=where, labels=injected)
            await eventually(lambda: world.review(probe), lambda found: len(found["spec"]["containers"]) >= 2)
            await world.api.create_all(
                pod(f"mesh-{number}", world.images.multi, namespace=where, labels=injected, spec=leaning_to("amd64"))
                for number in range(count)
            )
            await releases.holds(count)
            world.images.push(late, "arm64")
            await world.wait_all_bound(where, count)
    await world.assert_placed_rightly("held by webhook", where, count)


# --- of real controllers


CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller",
    "resourcequota-controller", "serviceaccount-controller",
)  # fmt: skip
OF_A_WORKLOAD = 10


async def test_pods_of_real_controllers(world: World, control_plane: LocalCluster, controller_manager: Path) -> None:
    """Deployments, ReplicaSets, StatefulSets and Jobs of images that are pushed later, and a quota that is full."""
    await world.create_both(4, cpu="512")
    await start_holding(world)
    where, full = await world.namespace(), await world.namespace()
    late = {architecture: world.images.unpushed() for architecture in OTHERS}
    made, count = workloads(where, late), 8 * OF_A_WORKLOAD
    too_many = workload("ReplicaSet", leaning("full", full, late["arm64"], "amd64"), 2 * OF_A_WORKLOAD)
    with control_plane.running_controllers(controller_manager, *CONTROLLERS), world.default_scheduler(""):
        await world.api.create(quota(full, OF_A_WORKLOAD))
        await world.api.wait_for("ResourceQuota", lambda found: bool(found.get("status", {}).get("used")), full)
        async with observed(world, where) as releases:
            await world.api.create_all([*made, too_many])
            await releases.holds(count)
            for architecture, image in late.items():
                world.images.push(image, architecture)
            await world.wait_all_bound(where, count)
        await world.wait_all_bound(full, OF_A_WORKLOAD)
    await world.assert_placed_rightly("held by webhook, real controllers", where, count)
    await world.assert_placed_rightly("held by webhook, real controllers", full, OF_A_WORKLOAD)


def leaning(name: str, where: str, image: str, architecture: str, **spec: Any) -> KubernetesObject:
    return pod(name, image, namespace=where, spec={**leaning_to(architecture), **spec})


def workloads(where: str, images: Mapping[str, str]) -> list[KubernetesObject]:
    found = [
        workload(kind, leaning(f"{kind.lower()}-{runs}", where, image, OTHERS[runs]), OF_A_WORKLOAD)
        for kind in ("Deployment", "ReplicaSet", "StatefulSet")
        for runs, image in images.items()
    ]
    for each in found:
        if each["kind"] == "StatefulSet":
            each["spec"] |= {"podManagementPolicy": "Parallel", "serviceName": "none"}
    for runs, image in images.items():
        spec = leaning("job", where, image, OTHERS[runs], restartPolicy="Never")["spec"]
        counts = {"parallelism": OF_A_WORKLOAD, "completions": OF_A_WORKLOAD}
        metadata = {"name": f"job-{runs}", "namespace": where}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        found.append({**job, "spec": {**counts, "template": {"metadata": {}, "spec": spec}}})
    return found


def quota(where: str, pods: int) -> KubernetesObject:
    """Of so many pods, held ones included."""
    metadata = {"name": "full", "namespace": where}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": str(pods)}}}
