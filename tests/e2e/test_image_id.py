"""An image id is what containerd calls an image, which may be a name under which another pod was pulled."""

import pytest

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.nodes.images import build_hello_index
from testbed.nodes.node import RealNode
from testbed.nodes.programs import NodePrograms
from testbed.objects import pod
from tests.e2e.running import BOTH, RealImages, observe
from tests.e2e.world import World

pytestmark = pytest.mark.e2e


async def test_an_image_id_may_name_another_repository(
    control_plane: LocalCluster, api: ApiClient, world: World, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """containerd knows an image by its configuration, and reports the first name under which the node has it."""
    image = build_hello_index(BOTH, real_images.hello)
    first, mirrored = real_images.push("zoo/app", image), real_images.push("aaa/mirror", image)
    where = await world.namespace()
    async with RealNode("amd64", node_programs, api, control_plane.kubeconfig, real_images.pause) as node:
        reported = []
        for count, reference in enumerate((first, mirrored, first), 1):
            name = f"pod-{count}"
            await api.create(pod(name, reference, namespace=where, cpu="10m", spec={"nodeName": node.name}))
            await observe(api, where, count)
            [status] = (await api.get("Pod", name, where))["status"]["containerStatuses"]
            reported.append(status["imageID"].rpartition("@"))
    host = real_images.registry.host
    assert [name for name, _, _ in reported] == [f"{host}/zoo/app", f"{host}/aaa/mirror", f"{host}/aaa/mirror"]
    assert {digest for _, _, digest in reported} == {image.digest}
