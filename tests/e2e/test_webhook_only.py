"""The webhook alone, with required node affinity: a kube-scheduler that knows no extender places every pod rightly.

Pods lean to an architecture on which they do not run, so that whatever the webhook misses stands wrongly.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, fake_node, kept_to, pod
from testbed.shipped_files import Mode
from tests.e2e.load import leaning_to
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

MODE = "webhook only, node_affinity: required"
ARCHITECTURE, ZONE = "kubernetes.io/arch", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EACH = 20
WRONG = {"amd64": "arm64", "arm64": "amd64"}


async def start_webhook(world: World, *settings: str) -> ExtenderProcess:
    """The shipped webhook, with these settings over its own, called for every namespace but the cluster's own."""
    service = await world.start_service(*settings, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    return service


async def add_zones(world: World, *zones: str) -> None:
    """A node of each architecture in each zone: amd64-a, arm64-a, and so on."""
    await world.api.create_all(
        fake_node(f"{architecture}-{zone}", architecture, cpu="64", labels={ZONE: zone})
        for architecture in WRONG
        for zone in zones
    )


def having(key: str, *values: str, operator: str = "In") -> KubernetesObject:
    """A node selector requirement."""
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def requiring(terms: Sequence[KubernetesObject], leaning: str, **spec: Any) -> KubernetesObject:
    """Part of a spec: required node affinity of these terms, beside the inclination."""
    inclined = leaning_to(leaning)
    inclined["affinity"]["nodeAffinity"][REQUIRED] = {"nodeSelectorTerms": list(terms)}
    return {**inclined, **spec}


def terms_of(found: KubernetesObject) -> list[KubernetesObject]:
    """The terms of a pod's required node affinity."""
    terms: list[KubernetesObject] = found["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return terms


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


EXISTING: Mapping[str, tuple[str, KubernetesObject, set[str]]] = {
    "two-zones": (
        "amd64",
        requiring([{"matchExpressions": [having(ZONE, "a")]}, {"matchExpressions": [having(ZONE, "b")]}], "arm64"),
        {"amd64-a", "amd64-b"},
    ),
    "zone-or-node": (
        "arm64",
        requiring(
            [{"matchExpressions": [having(ZONE, "a")]}, {"matchFields": [having("metadata.name", "arm64-c")]}], "amd64"
        ),
        {"arm64-a", "arm64-c"},
    ),
    "zone-or-wrong-node": (
        "arm64",
        requiring(
            [{"matchExpressions": [having(ZONE, "a")]}, {"matchFields": [having("metadata.name", "amd64-c")]}], "amd64"
        ),
        {"arm64-a"},
    ),
    "one-says-it-already": (
        "amd64",
        requiring(
            [
                {"matchExpressions": [having(ARCHITECTURE, "amd64"), having(ZONE, "a")]},
                {"matchExpressions": [having(ZONE, "b")]},
            ],
            "arm64",
        ),
        {"amd64-a", "amd64-b"},
    ),
    "excluding": (
        "arm64",
        requiring([{"matchExpressions": [having(ARCHITECTURE, "s390x", operator="NotIn")]}], "amd64"),
        {"arm64-a", "arm64-b", "arm64-c"},
    ),
    "labelled-at-all": (
        "amd64",
        requiring([{"matchExpressions": [having(ZONE, operator="Exists")]}], "arm64"),
        {"amd64-a", "amd64-b", "amd64-c"},
    ),
    "an-empty-term": ("amd64", requiring([{}, {"matchExpressions": [having(ZONE, "c")]}], "arm64"), {"amd64-c"}),
    "selector-too": (
        "arm64",
        requiring([{"matchExpressions": [having(ZONE, "a", "b")]}], "amd64", nodeSelector={ZONE: "b"}),
        {"arm64-b"},
    ),
}


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


def template(image: str, leaning: str, labels: Mapping[str, str], **spec: Any) -> KubernetesObject:
    """A pod template of one container."""
    made = pod("unnamed", image, labels=labels, spec={**leaning_to(leaning), **spec})
    return {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}


def workload(kind: str, name: str, where: str, made_from: KubernetesObject) -> KubernetesObject:
    """A Job, StatefulSet, ReplicaSet or DaemonSet with that pod template."""
    spec: KubernetesObject = {"template": made_from}
    if kind != "Job":  # whose selector its controller makes
        spec["selector"] = {"matchLabels": made_from["metadata"]["labels"]}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, "namespace": where}, "spec": spec}


def controlled(owner: KubernetesObject, index: int) -> KubernetesObject:
    """The pod that the controller of this workload makes of its template, as it sends it to the API server."""
    metadata, made_from = owner["metadata"], owner["spec"]["template"]
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    made = {
        "namespace": metadata["namespace"],
        "labels": made_from["metadata"].get("labels", {}),
        "ownerReferences": [reference],
    }
    spec = dict(made_from["spec"])
    if owner["kind"] == "StatefulSet":
        made["name"] = f"{metadata['name']}-{index}"
        spec |= {"hostname": made["name"], "subdomain": metadata["name"]}
    else:
        made["generateName"] = f"{metadata['name']}-"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


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
