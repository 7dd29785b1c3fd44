"""Manifests of bare pods that are applied again and again, as GitOps does: nothing changes, and nothing is refused.

By kubectl on a real API server, for pods that wait, that are held by a gate of somebody else, and that run.
"""

import asyncio
import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

ADDED, MERGE = "multiarch-extender.io/added", "application/merge-patch+json"
ARCH, ZONE = "kubernetes.io/arch", "topology.kubernetes.io/zone"


def expression(key: str, *values: str, operator: str = "In") -> KubernetesObject:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def term(*expressions: KubernetesObject, **more: Any) -> KubernetesObject:
    return {**({"matchExpressions": list(expressions)} if expressions else {}), **more}


def required(*terms: KubernetesObject) -> KubernetesObject:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


def nodes(**affinity: Any) -> KubernetesObject:
    return {"affinity": {"nodeAffinity": affinity}}


OWN = {"key": "team", "operator": "Equal", "value": "shop", "effect": "NoSchedule"}
EVICTED = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
PREFERRED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 5, "preference": term(expression(ZONE, "a"))},
        {"weight": 7, "preference": term(expression("disk", operator="Exists"))},
    ]
}
ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": ZONE}
        ]
    }
}
SHAPES: dict[str, KubernetesObject] = {
    "bare": {},
    "selector": {"nodeSelector": {"disk": "ssd"}},
    "selector-os": {"nodeSelector": {"kubernetes.io/os": "linux", "disk": "ssd"}},
    "selector-arch": {"nodeSelector": {ARCH: "amd64"}},
    "toleration": {"tolerations": [OWN]},
    "tolerations": {"tolerations": [OWN, EVICTED, {"key": "gpu", "operator": "Exists"}]},
    "tolerates-all": {"tolerations": [{"operator": "Exists"}]},
    "term": nodes(**required(term(expression(ZONE, "a", "b")))),
    "terms": nodes(**required(term(expression(ZONE, "a")), term(expression(ZONE, "b"), expression("disk", "ssd")))),
    "empty-term": nodes(**required(term(), term(expression(ZONE, "a")))),
    "field-term": nodes(**required(term(matchFields=[expression("metadata.name", "node-a")]))),
    "arch-term": nodes(**required(term(expression(ARCH, "amd64", "arm64")))),
    "excluding-term": nodes(**required(term(expression("old", operator="DoesNotExist")))),
    "preferred": nodes(**PREFERRED),
    "scheduler": {"schedulerName": "default-scheduler"},
    "other-scheduler": {"schedulerName": "somebodys"},
    "anti-affinity": {"affinity": ANTI},
    "empties": {"affinity": {"nodeAffinity": {}}, "tolerations": [], "nodeSelector": {}},
    "priority-gate": {"schedulingGates": [{"name": "example.com/theirs"}], "tolerations": [OWN]},
    "all": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [OWN, EVICTED],
        "affinity": {"nodeAffinity": {**required(term(expression(ZONE, "a"))), **PREFERRED}, **ANTI},
        "schedulerName": "default-scheduler",
    },
}
BOTH = (
    "admission.node_affinity=both",
    "admission.scheduler_name=multiarch-scheduler",
    "admission.platforms_annotation=true",
    f"admission.tolerations=[{{key: {ARCH}, operator: Exists, platforms: [linux/arm64, linux/amd64]}}]",
)


class Way(NamedTuple):
    """How manifests are applied, and how what applying them would change is shown."""

    apply: tuple[str, ...]
    diff: tuple[str, ...]


WAYS = {
    "client-side": Way(("apply",), ("diff",)),
    "server-side": Way(("apply", "--server-side"), ("diff", "--server-side")),
    "forced": Way(
        ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops"),
        ("diff", "--server-side", "--force-conflicts", "--field-manager=gitops"),
    ),
}


class Kubectl:
    """Runs kubectl with manifests on its standard input."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._command = (program, f"--kubeconfig={kubeconfig}")

    async def run(self, arguments: Sequence[str], manifests: Sequence[KubernetesObject]) -> tuple[int, str]:
        """The exit code, and what it said."""
        process = await asyncio.create_subprocess_exec(
            *self._command, *arguments, "-f", "-", stdin=-1, stdout=-1, stderr=-2
        )
        document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        said, _ = await process.communicate(msgspec.json.encode(document))
        assert process.returncode is not None
        return process.returncode, said.decode()

    async def stays(self, way: Way, manifests: Sequence[KubernetesObject]) -> None:
        """Applies them, and asserts that nothing is refused and nothing would change."""
        assert await self.run(way.diff, manifests) == (0, "")
        code, said = await self.run(way.apply, manifests)
        assert code == 0, said
        assert await self.run(way.diff, manifests) == (0, "")


def manifests_of(world: World, where: str) -> list[KubernetesObject]:
    """Each shape, of images for one architecture and for both in turn."""
    images = itertools.cycle((world.images.amd, world.images.multi))
    return [pod(shape, next(images), namespace=where, spec=copy.deepcopy(spec)) for shape, spec in SHAPES.items()]


async def stored_in(world: World, where: str) -> Mapping[str, Any]:
    """What is stored of each pod, but for its status and what the API server counts."""
    found = {}
    for each in await world.api.list("Pod", where):
        metadata = {key: each["metadata"].get(key) for key in ("annotations", "labels", "uid")}
        found[each["metadata"]["name"]] = {"spec": each["spec"], "metadata": metadata}
    return found


async def run_all(world: World, where: str, manifests: Sequence[KubernetesObject]) -> None:
    """Binds the pods that no gate holds to a node, and has them run."""
    for each in manifests:
        if "schedulingGates" not in each["spec"]:
            name = each["metadata"]["name"]
            path = f"/api/v1/namespaces/{where}/pods/{name}"
            target = {"apiVersion": "v1", "kind": "Node", "name": "amd64-0"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await world.api.request("POST", f"{path}/binding", binding)
            await world.api.request("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, content_type=MERGE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", [(), BOTH], ids=["default", "both"])
async def test_a_pod_is_as_it_was_when_its_manifest_is_applied_again(
    world: World, kubectl: Path, settings: Sequence[str], way: str
) -> None:
    """Whatever its author has written, and whether it waits or runs."""
    await world.create_both(1)
    await world.register_webhook(await world.start_service(*settings, mode=Mode.WEBHOOK))
    where = await world.namespace()
    manifests, tool = manifests_of(world, where), Kubectl(kubectl, world.cluster.kubeconfig)
    code, said = await tool.run(WAYS[way].apply, manifests)
    assert code == 0, said
    stored = await stored_in(world, where)
    recorded = [name for name, each in stored.items() if ADDED in (each["metadata"]["annotations"] or {})]
    assert len(recorded) >= len(SHAPES) / 2 - 1
    await tool.stays(WAYS[way], manifests)
    assert await stored_in(world, where) == stored
    await run_all(world, where, manifests)
    stored = await stored_in(world, where)
    await tool.stays(WAYS[way], manifests)
    assert await stored_in(world, where) == stored
    world.figure(f"applied again, {way}: {len(manifests)} pods, {len(recorded)} of them with additions")


async def test_what_an_author_changes_is_refused_as_it_would_be_without_us(world: World, kubectl: Path) -> None:
    """What may be changed, may: an image, and one toleration more."""
    await world.register_webhook(await world.start_service(*BOTH, mode=Mode.WEBHOOK))
    where = await world.namespace()
    tool = Kubectl(kubectl, world.cluster.kubeconfig)
    manifest = pod("a", world.images.multi, namespace=where, spec=copy.deepcopy(SHAPES["all"]))
    assert (await tool.run(("apply",), [manifest]))[0] == 0
    stored = await stored_in(world, where)
    for change in (
        {"tolerations": [EVICTED]},
        {"nodeSelector": {"disk": "hdd"}},
        {"affinity": {"nodeAffinity": required(term(expression(ZONE, "z")))}},
        {"schedulerName": "somebodys"},
    ):
        code, said = await tool.run(("apply",), [{**manifest, "spec": {**manifest["spec"], **change}}])
        assert code == 1, change
        assert "Forbidden" in said
    assert await stored_in(world, where) == stored
    more = {"key": "more", "operator": "Exists", "effect": "NoSchedule"}
    changed = copy.deepcopy(manifest)
    changed["spec"]["tolerations"].append(more)
    changed["spec"]["containers"][0]["image"] = world.images.amd
    code, said = await tool.run(("apply",), [changed])
    assert code == 0, said
    now = (await stored_in(world, where))["a"]["spec"]
    assert more in now["tolerations"]
    assert all(each in now["tolerations"] for each in stored["a"]["spec"]["tolerations"])
    assert now["affinity"] == stored["a"]["spec"]["affinity"]
    await tool.stays(WAYS["client-side"], [changed])
