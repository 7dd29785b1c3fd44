"""The policy of the how-to on a real API server: it reads from the pod what the webhook has written."""

import pytest
import yaml

from testbed.eventually import eventually
from testbed.objects import pod
from testbed.shipped_files import Mode
from tests.e2e.policies import refusal_of_pod
from tests.e2e.world import World
from tools.docs.pages import blocks, page

pytestmark = pytest.mark.e2e

PLATFORMS = "multiarch-extender.io/platforms"


async def test_the_rule_of_the_how_to_reads_what_the_images_run_on(world: World) -> None:
    """It refuses images that are built for amd64 alone, and neither others nor those that nobody knows."""
    service = await world.start_service("admission.platforms_annotation=true", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    strict, free = await world.namespace(labels={"arm64": "required"}), await world.namespace()
    rule = list(yaml.safe_load_all(list(blocks(page("how-to/check-manifests-in-ci.md"), "yaml"))[1]))
    images = world.images
    for each in rule:
        await world.api.apply(each)
    try:
        said = await eventually(lambda: refusal_of_pod(world.api, pod("amd", images.amd, namespace=strict)))
        assert "an image does not run on linux/arm64; all run on: linux/amd64" in said
        assert "all run on: no platform" in await refusal_of_pod(
            world.api, pod("none", images.amd, images.arm, namespace=strict)
        )
        assert not await refusal_of_pod(world.api, pod("amd", images.amd, namespace=free))
        for name, image in (("multi", images.multi), ("unknown", images.unpushed())):
            assert not await refusal_of_pod(world.api, pod(name, image, namespace=strict))
        await world.api.create(pod("multi", images.multi, images.arm, namespace=strict))
        stored = await world.api.get("Pod", "multi", strict)
        assert stored["metadata"]["annotations"][PLATFORMS] == "linux/arm64"
    finally:
        for each in reversed(rule):
            await world.api.delete(each["kind"], each["metadata"]["name"], "", each["apiVersion"])
