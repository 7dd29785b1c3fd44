"""The webhook alone, with required node affinity: a kube-scheduler that knows no extender places every pod rightly.

Pods lean to an architecture on which they do not run, so that whatever the webhook misses stands wrongly.
"""

import pytest

from testbed.objects import KubernetesObject, kept_to
from tests.e2e.load import leaning_to
from tests.e2e.shipped_webhook import (
    ARCHITECTURE,
    EXISTING,
    WRONG,
    ZONE,
    add_zones,
    controlled,
    having,
    requiring,
    start_webhook,
    template,
    terms_of,
    workload,
)
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

MODE = "webhook only, node_affinity: required"
EACH = 20


async def test_pods_of_every_kind_stand_rightly(world: World) -> None:
    """Six kinds: single-arch, multi-arch, two containers, an init container; nobody asks the extender verbs."""
    for architecture in WRONG:
        await world.create_nodes(architecture, 6, cpu="64")
    service = await start_webhook(world)
    where, images = await world.namespace(), world.images
    init = {"initContainers": [{"name": "init", "image": images.arm}]}
    with world.default_scheduler(""):
        await world.create_pods(where, EACH, images.amd, prefix="amd", spec=leaning_to("arm64"))
        await world.create_pods(where, EACH, images.arm, prefix="arm", spec=leaning_to("amd64"))
        await world.create_pods(where, EACH, images.multi, prefix="multi")
        await world.create_pods(where, EACH, images.multi, images.amd, prefix="two", spec=leaning_to("arm64"))
        await world.create_pods(where, EACH, images.multi, prefix="init", spec={**leaning_to("amd64"), **init})
        await world.create_pods(where, EACH, images.fresh("amd64"), prefix="new", spec=leaning_to("arm64"))
        await world.wait_all_bound(where, 6 * EACH)
    await world.assert_placed_rightly(MODE, where, 6 * EACH)
    assert await service.filter_calls() == 0


async def test_existing_terms_are_each_narrowed(world: World) -> None:
    """Terms are alternatives, and an entry of the nodeSelector holds for all of them."""
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
        assert terms_of(found) == terms_of({"spec": spec})
        assert found["spec"]["nodeSelector"] == {**spec.get("nodeSelector", {}), ARCHITECTURE: architecture}, prefix
    await world.assert_placed_rightly(MODE, where, 6 * len(EXISTING))


async def test_gated_pods_are_narrowed_while_they_wait_and_let_go(world: World) -> None:
    """The affinity is there from creation; their author adds a zone, takes one gate away, then the other."""
    await add_zones(world, "a", "b")
    await start_webhook(world)
    where = await world.namespace()
    gates = [{"name": "example.com/quota"}, {"name": "example.com/review"}]
    chosen: dict[str, str] = {}
    with world.default_scheduler(""):
        for image, right in ((world.images.amd, "amd64"), (world.images.arm, "arm64")):
            spec = {**leaning_to(WRONG[right]), "schedulingGates": gates}
            names = await world.create_pods(where, 20, image, prefix=f"gated-{right}", spec=spec)
            chosen |= dict.fromkeys(names, f"{right}-b")
        for name, node in chosen.items():
            found = await world.api.get("Pod", name, where)
            assert kept_to(found["spec"], ARCHITECTURE) == [node.removesuffix("-b")]
            await world.api.patch("Pod", name, {"spec": {"nodeSelector": {ZONE: "b"}}}, where)
            await world.api.patch("Pod", name, {"spec": {"schedulingGates": gates[1:]}}, where)
        assert await world.placed(where) == {}
        for name in chosen:
            await world.api.patch("Pod", name, {"spec": {"schedulingGates": None}}, where)
        placed = await world.wait_all_bound(where, len(chosen))
    assert placed == chosen
    await world.assert_placed_rightly(MODE, where, len(chosen))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [("ReplicaSet", {}), ("StatefulSet", {}), ("Job", {"restartPolicy": "Never"})],
    ids=["Deployment", "StatefulSet", "Job"],
)
async def test_the_pods_of_a_controller_stand_rightly(world: World, kind: str, spec: KubernetesObject) -> None:
    """Owned pods, most without a name of their own yet, as kube-controller-manager creates them."""
    await add_zones(world, "a", "b")
    await start_webhook(world)
    where = await world.namespace()
    with world.default_scheduler(""):
        for image, right in ((world.images.amd, "amd64"), (world.images.arm, "arm64")):
            made_from = template(image, WRONG[right], {"app": right}, **spec)
            owner = await world.api.create(workload(kind, f"on-{right}", where, made_from))
            await world.api.create_all(controlled({**owner, "kind": kind}, index) for index in range(25))
        await world.wait_all_bound(where, 50)
    await world.assert_placed_rightly(MODE, where, 50)


async def test_the_pods_of_a_daemonset_are_left_to_their_controller(world: World) -> None:
    """It has chosen the node already, by the template; those for the wrong one are told of, not changed."""
    await add_zones(world, "a")
    service = await start_webhook(world)
    where = await world.namespace()
    with world.default_scheduler(""):
        made_from = template(world.images.amd, "amd64", {"app": "agent"})
        owner = await world.api.create(workload("DaemonSet", "agent", where, made_from))
        before = await service.calls("admission")
        for node in ("amd64-a", "arm64-a"):
            made = controlled({**owner, "kind": "DaemonSet"}, 0)
            made["spec"] |= requiring([{"matchFields": [having("metadata.name", node)]}], "amd64")
            await world.api.create(made)
        placed = await world.wait_all_bound(where, 2)
    assert sorted(placed.values()) == ["amd64-a", "arm64-a"]
    assert await service.calls("admission") == before + 2
