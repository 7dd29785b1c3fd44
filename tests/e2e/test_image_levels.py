"""Images for a level of an architecture, such as amd64/v3: what a real node does with them, and what every part says.

A node's runtime knows no level of the node. It pulls no entry of an index for one, and does not look at the
configuration of a single manifest.
"""

import pytest

from testbed.control_plane import LocalCluster
from testbed.images import join_index
from testbed.nodes.images import PROGRAM, build_image
from testbed.nodes.programs import NodePrograms
from testbed.objects import kept_to, pod
from tests.e2e.running import BOTH, Outcome, RealImages, observe, open_nodes
from tests.e2e.test_golden_reports import explain_each
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.of_the_machine]


async def test_an_index_of_a_level_runs_nowhere_and_a_single_image_of_one_on_its_architecture(
    world: World, control_plane: LocalCluster, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """As kubelet and containerd do, filter, webhook and explain say."""
    single = build_image("linux/amd64/v3", {PROGRAM: real_images.hello["amd64"]})
    images = {
        "index": real_images.push("levels/index", join_index([("linux/amd64/v3", single)])),
        "single": real_images.push("levels/single", single),
    }
    async with open_nodes(control_plane, world.api, node_programs, real_images):
        bound = await world.namespace()
        await world.api.create_all(
            pod(name, image, namespace=bound, cpu="1m", spec={"nodeName": "amd64"}) for name, image in images.items()
        )
        seen = await observe(world.api, bound, len(images))
        assert {name: each.outcome for name, each in seen.items()} == {
            "index": Outcome.REFUSED,
            "single": Outcome.RUNS,
        }
        service = await world.start_service(*real_images.settings, "admission.node_affinity=required")
        await world.register_webhook(service)
        where = await world.namespace()
        refused, stored = {}, {}
        for name, image in images.items():
            made = pod(name, image, namespace=where, cpu="1m")
            stored[name] = await world.review(made)
            await world.api.create({**made, "spec": {**made["spec"], "schedulingGates": [{"name": "test/wait"}]}})
            answer = await service.ask("filter", {"Pod": made, "Nodes": None, "NodeNames": BOTH})
            refused[name] = answer["FailedAndUnresolvableNodes"]
        explained = await explain_each(world, real_images.registry, where, images)
    reason = f"image {images['index']} is built only for linux/amd64/v3"
    assert refused == {
        "index": dict.fromkeys(BOTH, reason),
        "single": {"arm64": f"image {images['single']} is built only for linux/amd64"},
    }
    assert stored["index"]["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith(reason)
    affinity = stored["index"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    nowhere = {"key": "kubernetes.io/arch", "operator": "In", "values": ["no-common-platform"]}
    assert affinity == {"nodeSelectorTerms": [{"matchExpressions": [nowhere]}]}
    assert kept_to(stored["single"]["spec"], "kubernetes.io/arch") == ["amd64"]
    runs = {name: {each["platform"]: each["images"] for each in told["nodes"]} for name, told in explained.items()}
    assert runs == {
        "index": {"linux/amd64": "no", "linux/arm64": "no"},
        "single": {"linux/amd64": "yes", "linux/arm64": "no"},
    }
