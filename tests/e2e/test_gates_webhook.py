"""The webhook alone with `admission.unknown: gate`: no pod stands wrongly, however late its images become known.

Every pod leans to an architecture on which its image does not run, so one that is let through unexamined stands
wrongly. kube-scheduler knows no extender.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import BasicAuth, web

from testbed.api_client import ApiError
from testbed.certificates import Authority
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod, workload
from testbed.shipped_files import Mode
from tests.e2e.gates import OTHERS, observed, spread, start_holding
from tests.e2e.load import leaning_to
from tests.e2e.shipped_webhook import EXISTING, add_zones, requiring
from tests.e2e.world import ADMISSIONREGISTRATION, World

pytestmark = pytest.mark.e2e

MODE = "webhook only, unknown: gate"
ARCHITECTURES = ("amd64", "arm64")
REASON = "multiarch-extender.io/reason"
ANOTHER = "example.com/quota"


async def add_nodes(world: World, count: int = 8) -> None:
    """So many nodes of each architecture, with room for 110 pods each."""
    for architecture in ARCHITECTURES:
        await world.create_nodes(architecture, count, cpu="256")


def push_to(world: World, registry: EmbeddedRegistry, repository: str, architecture: str) -> str:
    """Pushes an image for one architecture to that registry and returns its reference."""
    registry.add_index(repository, "1", [f"linux/{architecture}"])
    image = f"{registry.host}/{repository}:1"
    world.images.architectures[image] = frozenset({architecture})
    return image


async def create_leaning(world: World, where: str, count: int, image: str, prefix: str, **spec: Any) -> None:
    """Creates so many pods of a single-arch image, each leaning to where the image does not run."""
    [architecture] = world.images.architectures.get(image, {"arm64"})
    await world.create_pods(where, count, image, prefix=prefix, spec={**leaning_to(OTHERS[architecture]), **spec})


async def test_known_images_cost_no_gate_and_no_write(world: World) -> None:
    """A pod whose images are in memory is patched in its creation, and nobody writes to it before the scheduler."""
    await add_nodes(world, 2)
    service = await start_holding(world)
    where = await world.namespace()
    with world.default_scheduler(""):
        await create_leaning(world, where, 1, world.images.amd, "first")
        await world.wait_all_bound(where, 1)
        before = await service.metric("multiarch_admissions_total", outcome="patched")
        await create_leaning(world, where, 200, world.images.amd, "warm")
        await world.wait_all_bound(where, 201)
    assert await service.metric("multiarch_admissions_total", outcome="patched") == before + 200
    found = await world.api.list("Pod", where)
    writers = {entry["manager"] for each in found for entry in each["metadata"]["managedFields"]}
    assert not any("extender" in writer or "multiarch" in writer for writer in writers), writers
    assert not any(each["spec"].get("schedulingGates") for each in found)
    await world.assert_placed_rightly(MODE, where, 201)


async def test_pods_of_slow_registries_are_held_until_they_answer(world: World) -> None:
    """Lookups of four registries take 0, 2, 8 and 20 seconds."""
    await add_nodes(world)
    async with AsyncExitStack() as stack:
        registries = [
            await stack.enter_async_context(EmbeddedRegistry(delay_seconds=seconds)) for seconds in (0, 1, 4, 10)
        ]
        await start_holding(world, "registry.timeout_seconds=30", registries=tuple(registries))
        where, each = await world.namespace(), 150
        async with observed(world, where) as releases:
            with world.default_scheduler(""):
                began = time.monotonic()
                for number, registry in enumerate(registries):
                    for architecture in ARCHITECTURES:
                        image = push_to(world, registry, f"cold/{architecture}", architecture)
                        await create_leaning(world, where, each, image, f"r{number}-{architecture}")
                await world.wait_all_bound(where, 8 * each, timeout_seconds=120)
            world.figure(f"gates, registries of 0 to 20 s: pods let go {spread(releases.after(began))} after the first")
        await world.assert_placed_rightly(MODE, where, 8 * each)


async def test_images_pushed_after_their_pods(world: World) -> None:
    """The pods are held with a reason, and go when the push is seen."""
    await add_nodes(world)
    await start_holding(world)
    where, each = await world.namespace(), 250
    late = {architecture: world.images.unpushed() for architecture in ARCHITECTURES}
    async with observed(world, where) as releases:
        with world.default_scheduler(""):
            for architecture, image in late.items():
                spec = leaning_to(OTHERS[architecture])
                await world.create_pods(where, each, image, prefix=architecture, spec=spec)
            await releases.holds(2 * each)
            found = await world.api.get("Pod", "arm64-0", where)
            assert found["metadata"]["annotations"][REASON] == (
                f"image {late['arm64']} is not known yet (missing: its registry has no such image); the pod is held "
                "until it is known"
            )
            began = time.monotonic()
            for architecture, image in late.items():
                world.images.push(image, architecture)
            await world.wait_all_bound(where, 2 * each)
        world.figure(f"gates, images pushed after their pods: {spread(releases.after(began))} after the push")
    await world.assert_placed_rightly(MODE, where, 2 * each)


HELD_SECONDS = 4.0  # a tag that was confirmed two seconds ago is not asked for again


async def test_tag_that_moves_while_its_pods_are_held(world: World) -> None:
    """It was for amd64 when the pods came and is for arm64 when they go, so that is where they stand.

    Their other image is not there yet, so that they wait for longer than the tag's lookup took.
    """
    await add_nodes(world)
    async with EmbeddedRegistry() as registry:
        await start_holding(world, registries=(registry,))
        where = await world.namespace()
        image = push_to(world, registry, "moving/app", "amd64")
        late = f"{registry.host}/late/app:1"
        async with observed(world, where) as releases:
            with world.default_scheduler(""):
                await world.create_pods(where, 150, image, late, spec=leaning_to("amd64"))
                await releases.holds(150)
                await asyncio.sleep(HELD_SECONDS)
                push_to(world, registry, "moving/app", "arm64")
                registry.add_index("late/app", "1", ["linux/amd64", "linux/arm64"])
                world.images.architectures[late] = frozenset({"amd64", "arm64"})
                await world.wait_all_bound(where, 150)
        await world.assert_placed_rightly(MODE, where, 150)


class PrivateRegistry(EmbeddedRegistry):
    """Gives each repository `tenant-N/…` to the user `tenant-N` alone."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Refuses everybody else."""
        header = request.headers.get("Authorization", "")
        user = BasicAuth.decode(header).login if header.startswith("Basic ") else ""
        if not user or not request.path.startswith(f"/v2/{user}/"):
            return web.json_response({"errors": []}, status=401, headers={"WWW-Authenticate": 'Basic realm="tests"'})
        return await super().answer(request)


async def test_first_pods_of_private_images_of_twenty_tenants(world: World) -> None:
    """Reviews have the secrets read, and what is not known in time is held until it is."""
    await add_nodes(world)
    async with PrivateRegistry() as registry:
        service = await start_holding(world, registries=(registry,))
        wheres = []
        with world.default_scheduler(""):
            for number in range(20):
                where, tenant = await world.namespace(), f"tenant-{number}"
                wheres.append(where)
                await world.api.create(pull_secret(where, registry.host, tenant))
                architecture = ARCHITECTURES[number % 2]
                image = push_to(world, registry, f"{tenant}/app", architecture)
                secrets = {"imagePullSecrets": [{"name": "pull"}]}
                await create_leaning(world, where, 20, image, "private", **secrets)
            for where in wheres:
                await world.wait_all_bound(where, 20)
        for where in wheres:
            await world.assert_placed_rightly(MODE, where, 20)
    assert await service.metric("multiarch_admissions_total", outcome="unresolved") == 0


def pull_secret(where: str, host: str, user: str) -> KubernetesObject:
    """A pull secret of that user."""
    login = {"auths": {host: {"auth": base64.b64encode(f"{user}:password".encode()).decode()}}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pull", "namespace": where},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(msgspec.json.encode(login)).decode()},
    }


async def test_held_pods_of_every_affinity_are_narrowed(world: World) -> None:
    """Terms keep their number and order; those without any get one, and another owner's gate stays until it goes."""
    await add_zones(world, "a", "b", "c")
    await start_holding(world)
    where, each = await world.namespace(), 20
    late = {architecture: world.images.unpushed() for architecture in ARCHITECTURES}
    plain: dict[str, tuple[str, KubernetesObject]] = {
        "none": ("arm64", {}),
        "preferred": ("arm64", leaning_to("amd64")),
        "foreign": ("amd64", {**leaning_to("arm64"), "nodeSelector": {"kubernetes.io/os": "linux"}}),
    }
    shapes = plain | {prefix: (architecture, spec) for prefix, (architecture, spec, _) in EXISTING.items()}
    gated = {"schedulingGates": [{"name": ANOTHER}]}
    async with observed(world, where) as releases:
        with world.default_scheduler(""):
            for prefix, (architecture, spec) in shapes.items():
                await world.create_pods(where, each, late[architecture], prefix=prefix, spec={**spec, **gated})
            await releases.holds(each * len(shapes))
            for architecture, image in late.items():
                world.images.push(image, architecture)
            await releases.are(each * len(shapes))
            found = await world.api.list("Pod", where)
            assert {str(one["spec"]["schedulingGates"]) for one in found} == {str([{"name": ANOTHER}])}
            assert await world.placed(where) == {}
            await asyncio.gather(*(ungate_another(world, where, one["metadata"]["name"]) for one in found))
            placed = await world.wait_all_bound(where, each * len(shapes))
    for prefix, (_, _, allowed) in EXISTING.items():
        assert {placed[f"{prefix}-{index}"] for index in range(each)} <= allowed, prefix
    await world.assert_placed_rightly(MODE, where, each * len(shapes))


async def ungate_another(world: World, where: str, name: str) -> None:
    """Takes the other owner's gate off the pod, as its owner does."""
    patch = {"spec": {"schedulingGates": [{"$patch": "delete", "name": ANOTHER}]}}
    await world.api.request(
        "PATCH",
        f"/api/v1/namespaces/{where}/pods/{name}",
        patch,
        content_type="application/strategic-merge-patch+json",
    )


async def test_pods_that_no_node_can_run_wait_with_their_reason(world: World) -> None:
    """By a selector, by a term, or since their images have nothing in common: none is bound, whatever it leans to."""
    await add_zones(world, "a", "b")
    await start_holding(world)
    where, images = await world.namespace(), world.images
    foreign = requiring([{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}],
                        "arm64")  # fmt: skip
    with world.default_scheduler(""):
        await world.create_pods(
            where, 10, images.amd, prefix="selector", spec={"nodeSelector": {"kubernetes.io/arch": "arm64"}}
        )
        await world.create_pods(where, 10, images.amd, prefix="term", spec=foreign)
        await world.create_pods(where, 10, images.amd, images.arm, prefix="nothing", spec=leaning_to("arm64"))
        await create_leaning(world, where, 10, images.amd, "possible")
        await world.wait_all_bound(where, 10)
        for prefix, words in {
            "selector": "nodeSelector allows no node that the images run on: image ",
            "term": "1 of 1 terms of the pod's node affinity allow no node that the images run on: image ",
            "nothing": "no platform is common to all images: image ",
        }.items():
            await world.wait_refused(where, f"{prefix}-0")
            found = await world.api.get("Pod", f"{prefix}-9", where)
            assert found["metadata"]["annotations"][REASON].startswith(words)
    await world.assert_placed_rightly(MODE, where, 10)


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
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
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
    await add_nodes(world)
    service = await start_holding(world)
    where, late = await world.namespace(), world.images.unpushed()
    async with injecting(world, tmp_path, late), observed(world, where) as releases:
        with world.default_scheduler(""):
            probe = pod("probe", world.images.multi, namespace=where, labels={"inject": "yes"})
            await eventually(lambda: world.review(probe), lambda found: len(found["spec"]["containers"]) >= 2)
            await world.api.create_all(
                pod(f"mesh-{number}", world.images.multi, namespace=where, labels={"inject": "yes"},
                    spec=leaning_to("amd64"))
                for number in range(200)
            )  # fmt: skip
            await releases.holds(200)
            world.images.push(late, "arm64")
            await world.wait_all_bound(where, 200)
    await world.assert_placed_rightly(MODE, where, 200)
    assert await service.metric("multiarch_admissions_total", outcome="unresolved") == 0


CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller",
    "resourcequota-controller", "serviceaccount-controller",
)  # fmt: skip


async def test_pods_of_real_controllers(world: World, control_plane: LocalCluster, controller_manager: Path) -> None:
    """Deployments, ReplicaSets, StatefulSets and Jobs of images that are pushed later, and a quota that is full."""
    await add_nodes(world)
    await start_holding(world)
    where, full = await world.namespace(), await world.namespace()
    late = {architecture: world.images.unpushed() for architecture in ARCHITECTURES}
    made = [*workloads(where, late), workload("ReplicaSet", template("full", full, late["arm64"], "amd64"), 60)]
    with (
        control_plane.running_controllers(controller_manager, *CONTROLLERS),
        world.default_scheduler(""),
    ):
        await world.api.create(quota(full, 40))
        await world.api.wait_for("ResourceQuota", lambda found: bool(found.get("status", {}).get("used")), full)
        async with observed(world, where) as releases:
            await world.api.create_all(made)
            await releases.holds(320)
            for architecture, image in late.items():
                world.images.push(image, architecture)
            await world.wait_all_bound(where, 320)
        await world.wait_all_bound(full, 40)
    await world.assert_placed_rightly(f"{MODE}, real controllers", where, 320)
    await world.assert_placed_rightly(f"{MODE}, real controllers", full, 40)


def template(name: str, where: str, image: str, leaning: str, **spec: Any) -> KubernetesObject:
    """A pod that leans to that architecture."""
    return pod(name, image, namespace=where, spec={**leaning_to(leaning), **spec})


def workloads(where: str, images: Mapping[str, str]) -> list[KubernetesObject]:
    """Workloads of 320 pods in all."""
    found = [
        workload(kind, template(f"{kind.lower()}-{architecture}", where, image, OTHERS[architecture]), 40)
        for kind in ("Deployment", "ReplicaSet", "StatefulSet")
        for architecture, image in images.items()
    ]
    for each in found:
        if each["kind"] == "StatefulSet":
            each["spec"] |= {"podManagementPolicy": "Parallel", "serviceName": "none"}
    for architecture, image in images.items():
        made = template(f"job-{architecture}", where, image, OTHERS[architecture], restartPolicy="Never")
        found.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": f"job-{architecture}", "namespace": where},
                "spec": {"parallelism": 40, "completions": 40, "template": {"metadata": {}, "spec": made["spec"]}},
            }
        )
    return found


def quota(where: str, pods: int) -> KubernetesObject:
    """A quota of so many pods, held ones included."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": where},
        "spec": {"hard": {"pods": str(pods)}},
    }


async def test_without_a_controller_pods_pass_and_that_is_said(world: World) -> None:
    """The account may not lift gates, so the webhook adds none: the pod has a reason, and metric and log say so."""
    await add_nodes(world, 1)
    account = await world.account(Mode.SECOND)
    service = await world.start_service("admission.unknown=gate", f"cluster={account}", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where, never = await world.namespace(), world.images.unpushed()
    [name] = await world.create_pods(where, 1, never)
    found = await world.api.get("Pod", name, where)
    assert not found["spec"].get("schedulingGates")
    assert found["metadata"]["annotations"][REASON] == (
        f"image {never} is not known yet (missing: its registry has no such image); the pod was let through without "
        "it, as nobody is there to remove its gate later"
    )
    assert await service.metric("multiarch_admissions_total", outcome="unresolved") == 1
    [line] = [line for line in service.log().splitlines() if "pod.admitted_unresolved" in line]
    assert (never in line, name in line) == (True, True)


async def test_impossible_pod_is_denied_where_the_operator_says_so(world: World) -> None:
    """Its author reads why in the answer to the creation."""
    await start_holding(world, "admission.impossible=deny")
    where = await world.namespace()
    manifest = pod("denied", world.images.amd, world.images.arm, namespace=where)
    with pytest.raises(ApiError, match="no platform is common to all images: image ") as refused:
        await review_until_refused(world, manifest)
    assert refused.value.status == 403


async def review_until_refused(world: World, manifest: KubernetesObject) -> None:
    """Creates the pod as a dry run until it is refused, which takes until its images are known. Raises ApiError."""
    async with asyncio.timeout(30):
        while True:
            await world.review(manifest)
            await asyncio.sleep(0.2)
