"""Pods that a policy holds, with the service under its own account's policy: alone, and beside the webhook.

Every pod that is let go unexamined would stand wrongly, as each leans to an architecture on which it does not run.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import pytest
import trustme
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.eventually import USUAL_SECONDS
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, kept_to, pod
from testbed.processes import free_port
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.gates import OTHERS, observed, spread, start_controller
from tests.e2e.load import leaning_to
from tests.e2e.policies import GATE, ApplyPolicies, applied_policies, dry_run, gates_of, until_held
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

OF_A_SHAPE = 12
REASON = "multiarch-extender.io/reason"
FOREIGN = {"name": "example.com/quota"}
ARCHITECTURE = "kubernetes.io/arch"
WAYS = ("alone", "with-webhook")


@pytest.fixture
async def apply_policies(api: ApiClient) -> AsyncIterator[ApplyPolicies]:
    """Applies what the command prints for these arguments; the objects are deleted after the test."""
    async with applied_policies(api) as apply:
        yield apply


def required(*terms: KubernetesObject) -> KubernetesObject:
    """Part of a pod's spec: required node affinity with these terms."""
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
        }
    }


def term(key: str, *values: str) -> KubernetesObject:
    """A term of one expression."""
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def field(operator: str, node: str) -> KubernetesObject:
    """A term that names a node."""
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


async def start(world: World, way: str, *settings: str) -> ExtenderProcess:
    """The service for that way, with the webhook registered if there is one."""
    if way == "alone":
        return await start_controller(world, *settings)
    service = await world.start_service("admission.unknown=gate", *settings, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    return service


@pytest.mark.parametrize("way", WAYS)
async def test_pods_of_every_shape_stand_rightly(apply_policies: ApplyPolicies, world: World, way: str) -> None:
    """Images known before, of a slow registry, and pushed after their pods; every affinity; another owner's gate."""
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 4, cpu="512")
    await start(world, way)
    await apply_policies("own-account", "gate")
    where, images = await world.namespace(), world.images
    await until_held(world.api, where)
    world.registry.delay_seconds = 1.0
    late = {"amd64": images.unpushed(), "arm64": images.unpushed()}
    cold = {"amd64": images.fresh("amd64"), "arm64": images.fresh("arm64")}
    known = {"amd64": images.amd, "arm64": images.arm}
    pods = [
        pod(f"{shape}-{number}", kind[runs], namespace=where, cpu="10m", spec=build(runs))
        for shape, build in {**SHAPES, **IMPOSSIBLE}.items()
        for number in range(OF_A_SHAPE)
        for kind in [(known, cold, late)[number % 3]]
        for runs in [("amd64", "arm64")[number // 3 % 2]]
    ]
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await world.api.create_all(pods)
            await asyncio.sleep(3)
            for architecture, image in late.items():
                images.push(image, architecture)
            pushed = time.monotonic()
            await releases.are(len(pods), timeout_seconds=120)
            gated = [name for name in releases.at if name.startswith("foreign-gate-")]
            for name in gated:
                found = await world.api.get("Pod", name, where)
                assert gates_of(found) == [FOREIGN]
                await world.api.patch("Pod", name, {"spec": {"schedulingGates": []}}, where)
            await world.wait_all_bound(where, len(SHAPES) * OF_A_SHAPE, 120)
            await asyncio.sleep(2)
        world.figure(f"{way}: after the last images were pushed {spread(releases.after(pushed))}")
    for found in await world.api.list("Pod", where):
        if found["metadata"]["name"].rpartition("-")[0] in IMPOSSIBLE:
            assert "nodeName" not in found["spec"]
            assert "is built only for" in found["metadata"]["annotations"][REASON]
    await world.assert_placed_rightly(f"policy, {way}", where, len(SHAPES) * OF_A_SHAPE)


async def test_known_images_cost_no_gate_and_no_further_write(apply_policies: ApplyPolicies, world: World) -> None:
    """Beside the webhook: what the API server stores is what it answered the creator, affinity included."""
    await world.create_nodes("amd64", 1)
    await world.create_nodes("arm64", 1)
    await start(world, "with-webhook")
    await apply_policies("own-account", "gate")
    where, images = await world.namespace(), world.images
    await until_held(world.api, where)
    for image in (images.amd, images.arm, images.multi):  # so that they are known
        await world.review(pod("warm", image, namespace=where))
    before = await patches(world.api)
    chosen = (images.amd, images.arm, images.multi)
    made = await world.api.create_all(pod(f"p-{n}", chosen[n % 3], namespace=where) for n in range(300))
    await asyncio.sleep(3)  # a controller that had to let them go would have by now
    stored = {each["metadata"]["name"]: each for each in await world.api.list("Pod", where)}
    for each in made:
        found = stored[each["metadata"]["name"]]
        assert found["metadata"]["resourceVersion"] == each["metadata"]["resourceVersion"]
        assert gates_of(found) == []
        assert "multiarch-extender.io/gated" not in found["metadata"].get("labels", {})
        number = int(each["metadata"]["name"].removeprefix("p-"))
        assert kept_to(found["spec"], ARCHITECTURE) == (["amd64"], ["arm64"], [])[number % 3]
    assert await patches(world.api) == before
    world.figure(f"with-webhook, warm: {len(made)} pods, 0 gates, 0 patches of pods at the API server")


async def patches(api: ApiClient) -> float:
    """How many patches of pods the API server has taken."""
    return total(await api.metrics(), "apiserver_request", verb="PATCH", resource="pods")


def total(text: str, metric: str, /, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        if family.name == metric
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    )


# --- a webhook that does not answer as it should


@asynccontextmanager
async def refusing(_: Path) -> AsyncIterator[tuple[str, bytes]]:
    """Nobody listens."""
    yield f"https://127.0.0.1:{free_port()}", trustme.CA().cert_pem.bytes()


@asynccontextmanager
async def silent(_: Path) -> AsyncIterator[tuple[str, bytes]]:
    """Connections are accepted, and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", trustme.CA().cert_pem.bytes()


@asynccontextmanager
async def answering_500(folder: Path) -> AsyncIterator[tuple[str, bytes]]:
    """Every review is answered with 500."""
    authority = trustme.CA()
    async with https_server(authority) as url:
        yield url, authority.cert_pem.bytes()


@asynccontextmanager
async def of_another_authority(folder: Path) -> AsyncIterator[tuple[str, bytes]]:
    """The certificate is not of the authority that the API server was given."""
    async with https_server(trustme.CA()) as url:
        yield url, trustme.CA().cert_pem.bytes()


@asynccontextmanager
async def https_server(authority: trustme.CA) -> AsyncIterator[str]:
    """A server that answers 500."""

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=500)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


FAULTS = {
    "refused": refusing,
    "silent": silent,
    "another authority": of_another_authority,
    "answering 500": answering_500,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_webhook_that_fails_lets_pods_through_and_with_the_policy_they_are_held(
    apply_policies: ApplyPolicies, world: World, tmp_path: Path, fault: str
) -> None:
    """Without the policy the API server counts them as let through; with it they wait for the controller."""
    where = await world.namespace()
    async with FAULTS[fault](tmp_path) as (url, authority):
        configuration = webhook_configuration(Mode.WEBHOOK, url, authority)
        name = configuration["webhooks"][0]["name"]
        of_other_tests = await failures(world.api, name)
        await world.api.apply(configuration)
        try:
            async with asyncio.timeout(USUAL_SECONDS):  # until the API server calls it
                while await failures(world.api, name) == of_other_tests:
                    await dry_run(world.api, pod("first", world.images.amd, namespace=where))
            before = await failures(world.api, name)
            without = await timed(world, where, "without")
            assert [gates_of(each) for each in without.values()] == [[], [], []]
            assert await failures(world.api, name) - before == len(without)
            await apply_policies("own-account", "gate")
            await until_held(world.api, where)
            held = await timed(world, where, "held")
            assert [gates_of(each) for each in held.values()] == [[GATE], [GATE], [GATE]]
        finally:
            await world.unregister_webhook()
        world.figure(
            f"webhook {fault}: creating a pod takes {median(without) * 1000:.0f} ms without the policy (let through), "
            f"{median(held) * 1000:.0f} ms with it (held)"
        )


async def failures(api: ApiClient, name: str) -> float:
    """How often the API server has gone on without that webhook."""
    return total(await api.metrics(), "apiserver_admission_webhook_fail_open_count", name=name)


async def timed(world: World, where: str, prefix: str) -> Mapping[float, KubernetesObject]:
    """Three pods, created one after the other, by the seconds that each took."""
    made = {}
    for number in range(3):
        began = time.monotonic()
        found = await world.api.create(pod(f"{prefix}-{number}", world.images.amd, namespace=where))
        made[time.monotonic() - began] = found
    return made


# --- Jobs that a queue plans by their template


async def test_a_queued_job_has_the_affinity_in_its_template_before_it_starts(
    world: World, control_plane: LocalCluster, controller_manager: Path
) -> None:
    """The shipped webhook and the real Job controller: suspended as Kueue does it, then started."""
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 2)
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where, image = await world.namespace(), world.images.fresh("amd64")
    made = template_of(await world.api.create(job("queued", where, image)))
    plain = template_of(await world.api.create(job("plain", where, image, labels={})))
    await world.api.delete("Job", "plain", where, "batch/v1")
    assert kept_to(made, ARCHITECTURE) == ["amd64"]
    assert kept_to(plain, ARCHITECTURE) == []
    with control_plane.running_controllers(controller_manager, "job-controller"):
        await world.api.patch("Job", "queued", {"spec": {"suspend": False}}, where, "batch/v1")
        with world.default_scheduler(None):
            await world.wait_all_bound(where, 4)
    await world.assert_placed_rightly("Jobs with a queue", where, 4)


def job(name: str, where: str, image: str, labels: Mapping[str, str] | None = None) -> KubernetesObject:
    """A suspended Job of four pods that lean to the wrong nodes."""
    template = pod(name, image, namespace=where, spec={"restartPolicy": "Never", **leaning_to("arm64")})
    queue = {"kueue.x-k8s.io/queue-name": "team"} if labels is None else dict(labels)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": where, "labels": queue},
        "spec": {"suspend": True, "parallelism": 4, "completions": 4, "template": {"spec": template["spec"]}},
    }


def template_of(found: KubernetesObject) -> KubernetesObject:
    """The spec of a Job's pods."""
    spec: KubernetesObject = found["spec"]["template"]["spec"]
    return spec
