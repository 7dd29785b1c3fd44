"""Images that nodes have and no registry does: pods of them go there at once, on a real scheduler."""

import asyncio
import time
from contextlib import aclosing

import pytest

from testbed.objects import KubernetesObject, fake_node, pod
from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

IMAGE = "registry.invalid/airgapped/app:1"
EACH = 40
SECOND = "multiarch-scheduler"


def having(name: str, *images: str) -> KubernetesObject:
    """A node whose kubelet says that it has these images."""
    node = fake_node(name, "arm64", cpu="64")
    node["status"]["images"] = [{"names": [image], "sizeBytes": 500_000_000} for image in images]
    return node


async def test_pods_of_preloaded_images_go_to_nodes_that_have_them(world: World) -> None:
    """Under IfNotPresent and Never, within a second each; a pod of an image that nobody has waits."""
    await world.api.create_all([having("full-0", IMAGE), having("full-1", IMAGE), having("empty-0"), having("empty-1")])
    service = await world.start_service(mode=Mode.SECOND)
    where = await world.namespace(second=True)
    await service.ask("filter", {"Pod": pod("warm", IMAGE, namespace=where), "NodeNames": ["full-0"]})
    created: dict[str, float] = {}
    waited: dict[str, float] = {}
    placed: dict[str, str] = {}

    async def watch() -> None:
        async with aclosing(world.api.watch("Pod", where)) as changes:
            async for _, found in changes:
                name = found["metadata"]["name"]
                if found["spec"].get("nodeName") and name in created and name not in placed:
                    placed[name] = found["spec"]["nodeName"]
                    waited[name] = time.monotonic() - created[name]
                if len(placed) == 2 * EACH:
                    return

    with world.second_scheduler(service):
        await world.api.create(pod("first", IMAGE, namespace=where, spec={"schedulerName": SECOND}))
        await world.wait_all_bound(where, 1)  # kube-scheduler has begun
        watching = asyncio.create_task(watch())
        lost = pod("lost", "registry.invalid/airgapped/lost:1", namespace=where, spec={"schedulerName": SECOND})
        await world.api.create(lost)
        for policy in ("IfNotPresent", "Never"):
            for number in range(EACH):
                manifest = pod(f"{policy.lower()}-{number}", IMAGE, namespace=where, spec={"schedulerName": SECOND})
                manifest["spec"]["containers"][0]["imagePullPolicy"] = policy
                created[manifest["metadata"]["name"]] = time.monotonic()
                await world.api.create(manifest)
        async with asyncio.timeout(30):
            await watching
        there = {name: node for name, node in placed.items() if name.startswith("ifnotpresent")}
        assert set(there.values()) == {"full-0", "full-1"}
        assert "lost" not in await world.placed(where)
    slowest = max(waited.values())
    world.figure(f"preloaded images: {2 * EACH} pods bound, the slowest {slowest:.2f} s after its creation")
    assert slowest < 1
    assert await service.metric("multiarch_nodes_total", endpoint="filter", verdict="listed") >= EACH


async def test_gate_holds_no_pod_of_an_image_that_nodes_have(world: World) -> None:
    """The webhook lets it through unchanged; a pod of an image that nobody has is held, as its push may come."""
    await world.api.create_all([having("full-0", IMAGE), having("empty-0")])
    service = await world.start_service("admission.unknown=gate", "admission.wait_seconds=1", mode=Mode.WEBHOOK)
    async with asyncio.timeout(30):
        while "leading" not in await service.readiness():
            await asyncio.sleep(0.1)
    await world.register_webhook(service)
    where = await world.namespace()
    preloaded = await world.review(pod("preloaded", IMAGE, namespace=where))
    lost = await world.review(pod("lost", "registry.invalid/airgapped/lost:1", namespace=where))
    assert "schedulingGates" not in preloaded["spec"]
    assert lost["spec"]["schedulingGates"]
