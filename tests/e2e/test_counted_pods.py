"""Starts, restarts and crash loops by architecture, of pods whose status is written as kubelets write it."""

import asyncio

import pytest

from extender.cluster.counted_pods import COUNTED_LABEL
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

STARTS, RESTARTS, CRASH_LOOPS = (f"multiarch_workload_{what}_total" for what in ("starts", "restarts", "crash_loops"))


async def report(world: World, where: str, name: str, restarts: int = 0) -> None:
    """Writes the status of a pod that runs, or that waits for its next restart after so many."""
    state: KubernetesObject = {"waiting": {"reason": "CrashLoopBackOff"}} if restarts else {"running": {}}
    status = {
        "name": "container-0",
        "image": world.images.multi,
        "imageID": "",
        "ready": not restarts,
        "restartCount": restarts,
        "state": state,
    }
    path = f"/api/v1/namespaces/{where}/pods/{name}/status"
    changes = {"status": {"phase": "Running", "containerStatuses": [status]}}
    await world.api.request("PATCH", path, changes, content_type="application/merge-patch+json")


async def until_counted(service: ExtenderProcess, metric: str, count: float, **labels: str) -> None:
    """Returns when the metric has that value."""
    async with asyncio.timeout(30):
        while await service.metric(metric, **labels) != count:
            await asyncio.sleep(0.05)


async def test_a_rise_on_one_architecture_shows(world: World) -> None:
    """Two pods of a workload run on amd64, two loop on arm64; one without the label counts nowhere."""
    nodes = {"amd64": await world.create_nodes("amd64", 1), "arm64": await world.create_nodes("arm64", 1)}
    service = await world.start_service("placement.count_starts=true", mode=Mode.SECOND)
    await until_counted(service, "multiarch_cluster_nodes", 2)
    where = await world.namespace()
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u", "controller": True}
    for number, architecture in enumerate(("amd64", "amd64", "arm64", "arm64", "arm64")):
        labels = {COUNTED_LABEL: "true"} if number < 4 else {}
        spec = {"nodeName": nodes[architecture][0]}
        made = pod(f"web-{number}", world.images.multi, namespace=where, labels=labels, spec=spec)
        made["metadata"]["ownerReferences"] = [owner]
        await world.api.create(made)
        await report(world, where, f"web-{number}")
    workload = f"{where}/web"
    for architecture in nodes:
        await until_counted(service, STARTS, 2, workload=workload, architecture=architecture)
    for number in (2, 3, 4):
        await report(world, where, f"web-{number}", restarts=5)
    await until_counted(service, CRASH_LOOPS, 2, workload=workload, architecture="arm64")
    assert await service.metric(RESTARTS, workload=workload, architecture="arm64") == 10
    assert await service.metric(RESTARTS, workload=workload, architecture="amd64") == 0
    assert await service.metric(CRASH_LOOPS, workload=workload, architecture="amd64") == 0
    assert await service.metric(STARTS) == 4
    for number in range(4):
        await world.api.delete("Pod", f"web-{number}", where)
    async with asyncio.timeout(30):
        while workload in await service.metrics():
            await asyncio.sleep(0.05)
