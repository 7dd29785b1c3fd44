"""`audit` on real nodes: it finds the pods whose program is for another architecture, and blames the right image."""

import msgspec
import pytest

from testbed.eventually import eventually
from testbed.forked_commands import run
from testbed.nodes.images import build_hello_index
from testbed.nodes.programs import NodePrograms
from testbed.objects import pod
from tests.e2e.running import BOTH, Outcome, RealImages, observe, open_nodes
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

OF_CONTAINERS = {"runs-on-wrong-platform", "exec-format-error", "pull-refused", "tag-lost-platform"}


async def run_report(world: World, images: RealImages, where: str) -> dict[str, str]:
    """The rules of what the command finds of containers in the namespace, by pod or by container; and its messages."""
    settings = (*images.settings, f"cluster={world.cluster.kubeconfig}", "cache.url='memory:'")
    given = (f"--set={each}" for each in settings)
    code, output, errors = await run("audit", "-n", where, "-o", "json", "--no-newer", *given)
    assert code == 0, errors
    found = {}
    for each in msgspec.json.decode(output)["findings"]:
        if each["rule"] in OF_CONTAINERS:
            _, platform, workload, container, image = each["fingerprint"].split(":", 4)
            assert image in each["message"]
            assert platform in each["message"]
            found[f"{workload.rpartition('/')[2]}/{container}"] = each["rule"]
    return found


async def test_crashed_pods_are_found_and_blamed_on_their_image(
    world: World, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """A crash loop, a refused pull, a crash of an image that claims the platform, and pods that run or have ended.

    Where all is well there are no findings, until a tag loses the platform.
    """
    images, where, well = real_images, await world.namespace(), await world.namespace()
    moving = images.push("moving", build_hello_index(BOTH, images.hello))
    placed = {
        "crash": ("arm64", images.amd, {}),
        "pull": ("amd64", images.arm_index, {}),
        "fine-amd64": ("amd64", images.multi, {}),
        "fine-arm64": ("arm64", images.multi, {}),
        "never": ("arm64", images.amd, {"restartPolicy": "Never"}),
    }
    two = pod("two", images.multi, images.amd, namespace=where, cpu="10m", spec={"nodeName": "arm64"})
    [wrong] = [each["name"] for each in two["spec"]["containers"] if each["image"] == images.amd]
    expected = {
        "crash/container-0": "exec-format-error",
        "pull/container-0": "pull-refused",
        f"two/{wrong}": "exec-format-error",
    }
    async with open_nodes(world.cluster, world.api, node_programs, images):
        await world.api.create(pod("p", moving, namespace=well, cpu="10m", spec={"nodeName": "arm64"}))
        await world.api.create_all(
            pod(name, image, namespace=where, cpu="10m", spec={"nodeName": node, **spec})
            for name, (node, image, spec) in placed.items()
        )
        await world.api.create(two)
        seen = await observe(world.api, where, len(placed) + 1)
        # One whose program the kernel refuses is `running` for a moment.
        await eventually(lambda: run_report(world, images, where), lambda found: found == expected)
        await observe(world.api, well, 1)
        assert await run_report(world, images, well) == {}
        images.push("moving", build_hello_index(["amd64"], images.hello))
        assert await run_report(world, images, well) == {"p/container-0": "tag-lost-platform"}
        for namespace in (where, well):
            await world.api.delete_all("Pod", namespace)
    outcomes = {name: each.outcome for name, each in seen.items() if name != "two"}
    assert outcomes == {
        "crash": Outcome.CRASHES,
        "pull": Outcome.REFUSED,
        "fine-amd64": Outcome.RUNS,
        "fine-arm64": Outcome.RUNS,
        "never": Outcome.CRASHES,
    }, {name: each.text for name, each in seen.items()}
