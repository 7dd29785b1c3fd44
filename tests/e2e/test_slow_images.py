"""Pods whose images are not known when kube-scheduler asks: a slow registry, and images pushed after their pods."""

import pytest

from testbed.shipped_files import SECOND_SCHEDULER, Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

ANSWER_SECONDS = 8.0  # less than a request may take
PODS_OF_A_KIND = 10


async def test_pods_of_a_slow_registry_are_placed_rightly(world: World) -> None:
    """Every answer takes 8 s. The second scheduler comes back until the images are known; the default scheduler, which
    would take an error for an outage and pass every node, is told what the operator lets us assume.
    """
    await world.create_nodes("amd64", 3, cpu="8")
    await world.create_nodes("arm64", 3, cpu="64")
    second = await world.start_service(mode=Mode.SECOND, admission=False)
    default = await world.start_service("admission.node_affinity=required", mode=Mode.DEFAULT)
    await world.register_webhook(default, namespace_selector={"matchLabels": {"example.com/webhook": "true"}})
    later, immediate = await world.namespace(), await world.namespace(labels={"example.com/webhook": "true"})
    amd, arm = world.images.fresh("amd64", attested=True), world.images.fresh("arm64", attested=True)
    known = await default.metric("multiarch_images", state="known")
    world.registry.delay_seconds = ANSWER_SECONDS
    with world.second_scheduler(second), world.default_scheduler(default):
        await world.create_pods(later, PODS_OF_A_KIND, amd, prefix="amd", scheduler=SECOND_SCHEDULER)
        await world.create_pods(later, PODS_OF_A_KIND, arm, prefix="arm", scheduler=SECOND_SCHEDULER)
        await world.create_pods(immediate, PODS_OF_A_KIND, amd, prefix="amd")
        await world.wait_all_bound(immediate, PODS_OF_A_KIND)
        assert await default.metric("multiarch_images", state="known") == known
        assert await world.placed(later) == {}
        event = await world.api.wait_for_event("amd-0", namespace=later)
        condition = await world.wait_refused(later, "arm-0")
        await world.wait_all_bound(later, 2 * PODS_OF_A_KIND)
    assert event == f"image {amd} is not known yet (looking-up: its lookup has not ended yet); to be tried again"
    assert condition["reason"] == "SchedulerError"
    await world.assert_placed_rightly("second scheduler, node_affinity: none", later, 2 * PODS_OF_A_KIND)
    await world.assert_placed_rightly("default scheduler, node_affinity: required", immediate, PODS_OF_A_KIND)


async def test_an_image_pushed_after_its_pods_places_them_rightly(world: World) -> None:
    """The pods wait with the reason said; once the image is there, nobody has to do anything about them."""
    await world.create_nodes("amd64", 3)
    await world.create_nodes("arm64", 3)
    service = await world.start_service(admission=False)
    where = await world.namespace()
    amd, arm = world.images.unpushed(), world.images.unpushed()
    with world.second_scheduler(service):
        for prefix, image in (("amd", amd), ("arm", arm)):
            await world.create_pods(where, PODS_OF_A_KIND, image, prefix=prefix, scheduler=SECOND_SCHEDULER)
        for name in ("amd-0", "arm-0"):
            await world.wait_refused(where, name, saying="is not known yet (missing: ")
        world.images.push(amd, "amd64")
        world.images.push(arm, "arm64")
        await world.wait_all_bound(where, 2 * PODS_OF_A_KIND)
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, 2 * PODS_OF_A_KIND)
