"""Where a real kube-scheduler puts pods of amd64-only, arm64-only and multi-arch images, in each way to run us."""

import pytest

from testbed.objects import pod
from testbed.shipped_files import SECOND_SCHEDULER, Mode
from tests.e2e.shipped_webhook import ARCHITECTURE, EXISTING, add_zones, start_webhook, terms_of
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

PODS_OF_A_KIND = 15


async def test_pods_stay_off_the_architecture_that_their_image_lacks(world: World) -> None:
    """50 pods crowd on four nodes while eight of the other kind have far more room; one too many is told why."""
    await world.create_nodes("amd64", 4, cpu="8")
    await world.create_nodes("arm64", 8, cpu="64")
    where, image = await world.namespace(), world.images.fresh("amd64")
    service = await world.start_service(admission=False)
    with world.second_scheduler(service):
        await world.warm(service, where, image)
        await world.create_pods(where, 50, image, scheduler=SECOND_SCHEDULER, cpu="500m")
        await world.wait_all_bound(where, 50)
        [large] = await world.create_pods(where, 1, image, prefix="large", scheduler=SECOND_SCHEDULER, cpu="10")
        event = await world.api.wait_for_event(large, namespace=where)
    assert await world.count_placed(where) == {"amd64": 50}
    assert f"8 image {image} is built only for linux/amd64" in event
    assert "4 Insufficient cpu" in event


async def test_a_pod_that_fits_nowhere_says_so_and_evicts_nobody(world: World) -> None:
    """An important amd64-only pod in a cluster of arm64 nodes: Pending with our reason, and no preemption is tried."""
    await world.create_nodes("arm64", 6, cpu="2")
    await world.create_priority_class("important", 1000)
    where = await world.namespace()
    service = await world.start_service(mode=Mode.DEFAULT, admission=False)
    residents = [
        pod(f"resident-{index}", world.images.arm, namespace=where, cpu="1", spec={"nodeName": f"arm64-{index}"})
        for index in range(6)
    ]
    await world.api.create_all(residents)
    with world.scheduler(Mode.DEFAULT, service):
        await world.warm(service, where, world.images.amd)
        spec = {"priorityClassName": "important"}
        await world.create_pods(where, 1, world.images.amd, spec=spec)
        condition = await world.wait_refused(where, "pod-0")
        event = await world.api.wait_for_event("pod-0", namespace=where)
    assert condition["reason"] == "Unschedulable"
    assert condition["message"].startswith(
        f"0/6 nodes are available: 6 image {world.images.amd} is built only for linux/amd64"
    )
    assert "6 Preemption is not helpful for scheduling" in event
    assert await service.calls("preempt") == 0
    assert len(await world.placed(where)) == 6


async def test_multi_arch_pods_prefer_arm64_and_overflow_to_amd64(world: World) -> None:
    """arm64 is filled to its last CPU first, although amd64 is emptier and larger; the rest goes to amd64."""
    await world.create_nodes("arm64", 2, cpu="4")
    await world.create_nodes("amd64", 4, cpu="32")
    where = await world.namespace()
    service = await world.start_service(mode=Mode.SECOND, admission=False)
    with world.scheduler(Mode.SECOND, service):
        await world.warm(service, where, world.images.multi)
        await world.create_pods(where, 8, world.images.multi, scheduler=SECOND_SCHEDULER, cpu="1")
        await world.wait_all_bound(where, 8)
        assert await world.count_placed(where) == {"arm64": 8}
        await world.create_pods(where, 12, world.images.multi, scheduler=SECOND_SCHEDULER, cpu="1", prefix="more")
        await world.wait_all_bound(where, 20)
    assert await world.count_placed(where) == {"arm64": 8, "amd64": 12}


@pytest.mark.parametrize(
    ("mode", "affinity"),
    [
        pytest.param(Mode.SECOND, "none", id="second scheduler"),
        pytest.param(Mode.DEFAULT, "required", id="default scheduler, required"),
        pytest.param(Mode.WEBHOOK, "required", id="webhook only, required"),
    ],
)
async def test_mixed_pods_are_all_placed_rightly(world: World, mode: Mode, affinity: str) -> None:
    """Every mixture of images, cold ones among them, created at once: each pod is where all its images run."""
    await world.create_both(8, cpu="32")
    service = await world.start_service(f"admission.node_affinity={affinity}", mode=mode)
    await world.register_webhook(service, mode=Mode.SECOND if mode is Mode.SECOND else Mode.WEBHOOK)
    where = await world.namespace(second=mode is Mode.SECOND)
    images = world.images
    kinds = {
        "amd": (images.amd,),
        "arm": (images.arm,),
        "multi": (images.multi,),
        "multi-amd": (images.multi, images.fresh("amd64")),
        "multi-arm": (images.fresh("amd64", "arm64"), images.fresh("arm64")),
        "many": tuple(images.fresh("amd64", "arm64", "s390x") for _ in range(5)),
    }
    with world.scheduler(mode, None if mode is Mode.WEBHOOK else service):
        for kind, mixture in kinds.items():
            await world.create_pods(where, PODS_OF_A_KIND, *mixture, prefix=kind, cpu="10m")
        init = {"initContainers": [{"name": "init", "image": images.arm}]}
        await world.create_pods(where, PODS_OF_A_KIND, images.multi, prefix="init", cpu="10m", spec=init)
        count = (len(kinds) + 1) * PODS_OF_A_KIND
        await world.wait_all_bound(where, count, 120)
    label = {Mode.SECOND: "second scheduler", Mode.DEFAULT: "default scheduler", Mode.WEBHOOK: "webhook only"}[mode]
    await world.assert_placed_rightly(f"{label}, node_affinity: {affinity}", where, count)


async def test_existing_terms_are_each_narrowed(world: World) -> None:
    """By the webhook: terms are alternatives, and each gets the architecture unless it is empty or requires it."""
    await add_zones(world, "a", "b", "c")
    await start_webhook(world)
    where, images = await world.namespace(), {"amd64": world.images.amd, "arm64": world.images.arm}
    with world.default_scheduler(""):
        for prefix, (architecture, spec, _) in EXISTING.items():
            await world.create_pods(where, 6, images[architecture], prefix=prefix, spec=spec)
        placed = await world.wait_all_bound(where, 6 * len(EXISTING))
    for prefix, (architecture, spec, allowed) in EXISTING.items():
        assert {placed[f"{prefix}-{index}"] for index in range(6)} <= allowed, prefix
        found = await world.api.get("Pod", f"{prefix}-0", where)
        added = {"key": ARCHITECTURE, "operator": "In", "values": [architecture]}
        assert terms_of(found) == [
            term
            if not term or added in (own := term.get("matchExpressions", []))
            else {**term, "matchExpressions": [*own, added]}
            for term in terms_of({"spec": spec})
        ], prefix
        assert found["spec"].get("nodeSelector") == spec.get("nodeSelector"), prefix
    await world.assert_placed_rightly("webhook only, node_affinity: required", where, 6 * len(EXISTING))
