"""A status that says that a program is of another architecture, in a real cluster: whom it concerns, and whom not."""

import asyncio

import pytest

from testbed.objects import pod
from testbed.shipped_files import Mode
from tests.e2e.test_drift import filtered
from tests.e2e.world import World

pytestmark = pytest.mark.e2e


async def test_a_forged_crash_changes_nothing_in_another_namespace(world: World) -> None:
    """Whoever may write a pod's status refutes an image for its own namespace, and for no other."""
    await world.create_nodes("arm64", 1)
    await world.create_nodes("amd64", 1)
    await world.account(Mode.SECOND)
    forging, other = await world.namespace(), await world.namespace()
    image = world.images.fresh("amd64", "arm64")
    repository, _, tag = image.removeprefix(f"{world.registry.host}/").partition(":")
    digest = world.registry.add_index(repository, tag, ["linux/amd64", "linux/arm64"])
    await world.api.create(pod("forged", image, namespace=forging, spec={"nodeName": "arm64-0"}))
    service = await world.start_service("drift.check_seconds=1", admission=False)
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
    await world.api.request(
        "PATCH",
        f"/api/v1/namespaces/{forging}/pods/forged/status",
        {"status": {"phase": "Running", "containerStatuses": [status]}},
        content_type="application/merge-patch+json",
    )
    async with asyncio.timeout(30):
        while await service.metric("multiarch_image_crashes_total", seen="new") < 1:
            await asyncio.sleep(0.1)
    assert await filtered(world, pod("own", image, namespace=forging)) == {"amd64-0"}
    assert await filtered(world, pod("others", image, namespace=other)) == {"amd64-0", "arm64-0"}
