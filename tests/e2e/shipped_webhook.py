"""The shipped webhook on a cluster of two architectures, and pods and workloads that say much themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, fake_node
from testbed.shipped_files import Mode
from tests.e2e.load import leaning_to
from tests.e2e.world import World

ARCHITECTURE, ZONE = "kubernetes.io/arch", "topology.kubernetes.io/zone"


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def requiring(terms: Sequence[KubernetesObject], leaning: str, **spec: Any) -> KubernetesObject:
    inclined = leaning_to(leaning)
    inclined["affinity"]["nodeAffinity"][REQUIRED] = {"nodeSelectorTerms": list(terms)}
    return {**inclined, **spec}


def terms_of(found: KubernetesObject) -> list[KubernetesObject]:
    terms: list[KubernetesObject] = found["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return terms


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
