"""A status that says that a program is of another architecture, in a real cluster: whom it concerns, and whom not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed.api_client import ApiClient, ApiError, connect
from testbed.extender_process import write_token_kubeconfig
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.test_drift import filtered
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

FORGER = "forger"
RBAC = "rbac.authorization.k8s.io"
RIGHTS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
]


@asynccontextmanager
async def forger(world: World, where: str, folder: Path) -> AsyncIterator[ApiClient]:
    """A client with the rights to create pods in the namespace and to write their status, and with no other."""
    named = {"metadata": {"name": FORGER, "namespace": where}}
    role = {"apiGroup": RBAC, "kind": "Role", "name": FORGER}
    objects: list[KubernetesObject] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", **named, "rules": RIGHTS},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            **named,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": FORGER, "namespace": where}],
        },
    ]
    for each in objects:
        await world.api.create(each)
    kubeconfig = await write_token_kubeconfig(
        world.api, world.cluster.kubeconfig, folder / "forger.kubeconfig", FORGER, where
    )
    async with connect(kubeconfig) as api:
        yield api


async def test_a_forged_crash_changes_nothing_in_another_namespace(world: World, tmp_path: Path) -> None:
    """Whoever may write a pod's status refutes an image for its own namespace, and for no other."""
    await world.create_nodes("arm64", 1)
    await world.create_nodes("amd64", 1)
    await world.account(Mode.SECOND)
    forging, other = await world.namespace(), await world.namespace()
    image = world.images.fresh("amd64", "arm64")
    repository, _, tag = image.removeprefix(f"{world.registry.host}/").partition(":")
    digest = world.registry.add_index(repository, tag, ["linux/amd64", "linux/arm64"])
    service = await world.start_service(admission=False)
    await world.warm(service, other, image)
    assert await filtered(world, pod("before", image, namespace=forging)) == {"amd64-0", "arm64-0"}
    ended = {"exitCode": 255, "reason": "Error", "message": "exec /app: exec format error\n"}
    status = {
        "name": "container-0",
        "image": image,
        "imageID": f"{world.registry.host}/{repository}@{digest}",
        "ready": False,
        "restartCount": 3,
        "state": {"terminated": ended},
    }
    forged = {"status": {"phase": "Running", "containerStatuses": [status]}}
    async with forger(world, forging, tmp_path) as api:
        await api.create(pod("forged", image, namespace=forging, spec={"nodeName": "arm64-0"}))
        with pytest.raises(ApiError, match="forbidden"):
            await api.create(pod("forged", image, namespace=other, spec={"nodeName": "arm64-0"}))
        path = f"/api/v1/namespaces/{forging}/pods/forged/status"
        await api.request("PATCH", path, forged, content_type="application/merge-patch+json")
    async with asyncio.timeout(30):
        while await service.metric("multiarch_image_crashes_total", seen="new") < 1:
            await asyncio.sleep(0.1)
    assert await filtered(world, pod("own", image, namespace=forging)) == {"amd64-0"}
    assert await filtered(world, pod("others", image, namespace=other)) == {"amd64-0", "arm64-0"}
