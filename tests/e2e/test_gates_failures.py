"""Gated pods while things break: none stands wrongly, none is held for ever, and how soon they go once all is well.

Every pod leans to an architecture on which its image does not run, so one that is let go unexamined stands wrongly.
"""

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject
from testbed.shipped_files import Mode
from testbed.tcp_proxy import open_tcp_proxy
from tests.e2e.gates import create_gated, gated_pod, observed, proxied_account, spread, start_controller
from tests.e2e.world import World
from tests.unit.cli.commands import run

pytestmark = pytest.mark.e2e

MODE = "gates, while things break"
HELD = 100
TAKEOVER_SECONDS = 15.0


async def add_nodes(world: World) -> None:
    """Six nodes of each architecture with room for all."""
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 6, cpu="256")


async def leader_of(*services: ExtenderProcess) -> ExtenderProcess:
    """The service that leads, once one does."""

    async def leading() -> list[ExtenderProcess]:
        return [each for each in services if "leading" in await each.readiness()]

    return (await eventually(leading))[0]


async def test_known_images_are_let_go_at_once(world: World) -> None:
    """Pods that a policy has gated: one patch each, and the event says nothing, as nothing was held for long."""
    await add_nodes(world)
    await start_controller(world)
    where, images = await world.namespace(), world.images
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await create_gated(world, where, 10, [images.amd, images.arm])
            await releases.are(10)
            began = time.monotonic()
            await create_gated(world, where, HELD, [images.amd, images.arm], prefix="warm")
            await releases.are(HELD + 10)
            await world.wait_all_bound(where, HELD + 10)
        world.figure(f"gates, warm: {HELD} pods created and let go in {releases.after(began)[-1]:.2f} s")
    await world.assert_placed_rightly("gates, policy's own pods", where, HELD + 10)


async def test_killed_with_pods_held(world: World) -> None:
    """SIGKILL while pods wait: their image is pushed meanwhile, and the next process lets them go."""
    await add_nodes(world)
    service = await start_controller(world)
    where, late = await world.namespace(), world.images.unpushed()
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await create_gated(world, where, HELD, [late])
            await releases.holds(HELD)
            await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
            service.kill()
            world.images.push(late, "arm64")
            await asyncio.sleep(1)
            assert releases.at == {}
            began = time.monotonic()
            await service.start()
            ready = time.monotonic()
            await releases.are(HELD)
            await world.wait_all_bound(where, HELD)
        world.figure(
            f"gates, killed with {HELD} held: after the start {spread(releases.after(began))}; "
            f"after it was ready {spread([at + began - ready for at in releases.after(began)])}"
        )
    await world.assert_placed_rightly(MODE, where, HELD)


async def test_standby_takes_over(world: World) -> None:
    """Of two replicas the leader is killed while pods wait; the other lets them go within 15 seconds."""
    await add_nodes(world)
    first, second = await start_controller(world), await start_controller(world)
    where, late = await world.namespace(), world.images.unpushed()
    leader = await leader_of(first, second)
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await create_gated(world, where, HELD, [late])
            await releases.holds(HELD)
            await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
            leader.kill()
            world.images.push(late, "arm64")
            killed = time.monotonic()
            await releases.are(HELD)
            await world.wait_all_bound(where, HELD)
        after = releases.after(killed)
        world.figure(
            f"gates, leader of two killed with {HELD} held: first let go {after[0]:.2f} s later, {spread(after)}"
        )
        assert after[0] < TAKEOVER_SECONDS
    await world.assert_placed_rightly(MODE, where, HELD)


async def test_rolled_over_two_replicas(world: World) -> None:
    """Each of two replicas is replaced in good order while pods come: the lease is handed over, not waited for."""
    await add_nodes(world)
    services = [await start_controller(world), await start_controller(world)]
    where, images = await world.namespace(), world.images
    late, count = images.unpushed(), 0
    async with observed(world, where) as releases:
        with world.default_scheduler(None):
            await create_gated(world, where, 30, [late], prefix="late")
            for turn, old in enumerate(services):
                new = await start_controller(world)
                await create_gated(world, where, 30, [images.amd, images.arm], prefix=f"turn-{turn}")
                await asyncio.to_thread(old.terminate)
                count += 30
                began = time.monotonic()
                await create_gated(world, where, 30, [images.amd, images.arm], prefix=f"after-{turn}")
                count += 30
                await releases.are(count)
                world.figure(f"gates, replica {turn} replaced: pods created afterwards {spread(releases.after(began))}")
                assert new.is_running
            assert len(releases.held) == 30
            images.push(late, "arm64")
            await releases.are(count + 30)
            await world.wait_all_bound(where, count + 30)
    await world.assert_placed_rightly(MODE, where, count + 30)


async def test_cut_off_from_the_api_server(world: World, control_plane: LocalCluster, tmp_path: Path) -> None:
    """For longer than the lease lasts, while etcd's history is compacted: the pods go once it is reached again."""
    await add_nodes(world)
    port = urlsplit(world.api.server).port
    assert port is not None
    async with open_tcp_proxy(port) as proxy:
        account = await proxied_account(world, proxy, tmp_path)
        await start_controller(world, f"cluster={account}")
        where, late = await world.namespace(), world.images.unpushed()
        async with observed(world, where) as releases:
            with world.default_scheduler(None):
                await create_gated(world, where, HELD, [late])
                await releases.holds(HELD)
                await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
                proxy.refuse()
                world.images.push(late, "arm64")
                await asyncio.sleep(12)
                await create_gated(world, where, 50, [world.images.amd], prefix="meanwhile")
                control_plane.compact_etcd()
                assert releases.at == {}
                proxy.accept()
                began = time.monotonic()
                await releases.are(HELD + 50)
                await world.wait_all_bound(where, HELD + 50)
            world.figure(f"gates, cut off from the API server for 12 s: {spread(releases.after(began))}")
    await world.assert_placed_rightly(MODE, where, HELD + 50)


async def test_cut_off_from_the_registry(world: World) -> None:
    """Pods whose registry refuses connections are held with an event, and go when it answers again."""
    await add_nodes(world)
    port = urlsplit(world.registry.url).port
    assert port is not None
    async with open_tcp_proxy(port) as proxy:
        host = f"127.0.0.1:{proxy.port}"
        reached = world.registry.host
        await start_controller(
            world, f"registry.plain_http=['{host}','{reached}']", f"registry.allow=['{host}','{reached}']"
        )
        where, image = await world.namespace(), world.images.fresh("arm64")
        behind = image.replace(reached, host)
        world.images.architectures[behind] = frozenset({"arm64"})
        proxy.refuse()
        async with observed(world, where) as releases:
            with world.default_scheduler(None):
                await create_gated(world, where, HELD, [behind])
                text = await world.api.wait_for_event("held-0", "WaitingForImagePlatforms", where)
                assert behind in text
                await asyncio.sleep(5)
                assert releases.at == {}
                proxy.accept()
                began = time.monotonic()
                await releases.are(HELD)
                await world.wait_all_bound(where, HELD)
            world.figure(f"gates, cut off from the registry: {spread(releases.after(began))} after it was back")
    await world.assert_placed_rightly(MODE, where, HELD)


async def test_pod_is_told_of_in_events(world: World) -> None:
    """What `kubectl describe pod` shows of a pod whose image is pushed after it: held because, let go as."""
    await add_nodes(world)
    await start_controller(world)
    where, late = await world.namespace(), world.images.unpushed()
    await world.api.create(gated_pod("early", late, where, "amd64"))
    held = await world.api.wait_for_event("early", "WaitingForImagePlatforms", where)
    assert held.startswith("held: ")
    assert late in held
    world.images.push(late, "arm64")
    let_go = await world.api.wait_for_event("early", "ImagePlatformsKnown", where)
    assert let_go.startswith("gate removed (known)")
    assert "built only for linux/arm64" in let_go


async def test_limit_ends_the_wait(world: World) -> None:
    """A pod whose image never comes is let go after the limit, with a warning that says so."""
    await add_nodes(world)
    await start_controller(world, "admission.gate.limit_seconds=4")
    where, never = await world.namespace(), world.images.unpushed()
    async with observed(world, where) as releases:
        await world.api.create(gated_pod("unlucky", never, where, "amd64"))
        await releases.are(1, timeout_seconds=15)
    text = await world.api.wait_for_event("unlucky", "ImagePlatformsUnresolved", where)
    assert never in text


async def test_controller_without_rights_says_so_and_holds_nothing_back(world: World, tmp_path: Path) -> None:
    """The second scheduler's account may not patch pods: the service serves, and is ready after a while."""
    account = await world.account(Mode.SECOND)
    service = await world.start_service(
        "admission.unknown=gate", f"cluster={account}", mode=Mode.SECOND, admission=False
    )
    assert "may not" in service.log()
    assert "patch pods" in service.log()
    assert await service.is_ready()


async def test_ungate_frees_what_is_held(world: World) -> None:
    """The command finds the cluster by its kubeconfig; the pods go without a controller, others' gates stay."""
    where = await world.namespace()
    await create_gated(world, where, 20, [world.images.unpushed()])
    both = gated_pod("both", world.images.arm, where, "amd64")
    both["spec"]["schedulingGates"].append({"name": "example.com/quota"})
    await world.api.create(both)
    dry = await ungate(world, "-n", where, "--dry-run")
    assert dry.splitlines()[-1] == f"21 pods with our gate or its label in namespace {where}: 21 would be ungated"
    done = await ungate(world, "-n", where)
    assert done.splitlines()[-1] == f"21 pods with our gate or its label in namespace {where}: 21 ungated"
    gates = {
        each["metadata"]["name"]: each["spec"].get("schedulingGates") for each in await world.api.list("Pod", where)
    }
    assert gates.pop("both") == [{"name": "example.com/quota"}]
    assert set(map(bool, gates.values())) == {False}
    assert (await ungate(world, "-n", where)).startswith("0 pods")


async def ungate(world: World, *arguments: str) -> str:
    """The output of the command `ungate` as the administrator runs it; it must succeed."""
    code, out, err = await run("ungate", *arguments, "--kubeconfig", str(world.cluster.kubeconfig))
    assert code == 0, err
    return out


async def test_rule_of_the_cluster_against_what_images_need(world: World) -> None:
    """It denies each change of a pod's affinity, with HTTP 403: the gate alone comes off, and an event says why."""
    where = await world.namespace()
    rule, named = {"apiVersion": "admissionregistration.k8s.io/v1"}, {"name": f"{where}-affinity"}
    policy = rule | {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": named,
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": where}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}
                ],
            },
            "validations": [
                {
                    "expression": "object.spec.?affinity == oldObject.spec.?affinity",
                    "message": "affinity is not to be changed",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = rule | {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": named,
        "spec": {"policyName": named["name"], "validationActions": ["Deny"]},
    }
    manifest = gated_pod("ruled", world.images.arm, where, "amd64")
    await world.api.create(manifest)
    await world.api.apply(policy)
    await world.api.apply(binding)
    try:
        terms = [{"matchExpressions": [{"key": "rule", "operator": "Exists"}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        change = {"spec": {"affinity": {"nodeAffinity": required}}}
        path = f"/api/v1/namespaces/{where}/pods/ruled?dryRun=All"
        await eventually(lambda: is_forbidden(world.api, path, change))
        async with observed(world, where) as releases:
            await start_controller(world)
            await releases.are(1)
        text = await world.api.wait_for_event("ruled", "ImagePlatformsUnresolved", where)
    finally:
        for each in (binding, policy):
            await world.api.delete(str(each["kind"]), named["name"], "", rule["apiVersion"])
    assert text.startswith(
        "gate removed (bare): the API server refused what its images need, so only the gate was taken off:"
    )
    assert "HTTP 403" in text
    assert (await world.api.get("Pod", "ruled", where))["spec"]["affinity"] == manifest["spec"]["affinity"]


async def is_forbidden(api: ApiClient, path: str, change: KubernetesObject) -> bool:
    """Whether the API server answers 403 to the merge patch."""
    try:
        await api.request("PATCH", path, change, content_type="application/merge-patch+json")
    except ApiError as exc:
        return exc.status == 403
    return False
