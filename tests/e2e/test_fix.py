"""`fix` and the webhook agree: pods made from fixed templates get no patch, pods made from the others do."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from testbed.eventually import eventually
from testbed.forked_commands import run
from testbed.objects import KubernetesObject
from tests.e2e.load import leaning_to
from tests.e2e.pod_makers import built_in, template
from tests.e2e.shipped_webhook import EXISTING, start_webhook
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

KINDS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "Deployment")
TOLERATIONS: tuple[list[KubernetesObject], ...] = (
    [],
    [{"key": "arch", "operator": "Exists"}],
    [{"operator": "Exists"}],
)
ZONE_A = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
PREFERRED_TERMS = [{"weight": 1, "preference": ZONE_A}]
PREFERRED: KubernetesObject = {
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED_TERMS}}
}
SPECS: tuple[KubernetesObject, ...] = (
    {},
    {"nodeSelector": {"kubernetes.io/os": "linux"}},
    {"nodeSelector": {"kubernetes.io/arch": "amd64"}},
    PREFERRED,
    *(leaning_to(architecture) for architecture in ("amd64", "arm64")),
    *(spec for _, spec, _ in EXISTING.values()),
)


def workloads(world: World, where: str) -> Iterator[KubernetesObject]:
    """Over a hundred workloads: each kind in turn, over every spec, image and toleration that go together."""
    images = world.images
    chosen: list[tuple[str, ...]] = [(images.multi,), (images.amd,), (images.multi, images.amd)]
    together = itertools.product(SPECS, chosen, TOLERATIONS)
    for index, ((spec, names, tolerations), kind) in enumerate(zip(together, itertools.cycle(KINDS), strict=False)):
        made = template(names[0], tolerations=tolerations, **spec)
        made["metadata"]["labels"] = {"app": f"app-{index}"}
        if len(names) > 1:
            made["spec"]["containers"].append({"name": "second", "image": names[-1]})
        yield built_in(kind, f"{kind.lower()}-{index}", where, made)


async def fixed(world: World, text: str, *options: str) -> tuple[int, str, str]:
    host = world.registry.host
    settings = [f"--set=registry.plain_http=['{host}']", f"--set=registry.allow=['{host}']"]
    return await run("fix", "-f", "-", *options, *settings, stdin=text)


def made_of(owner: KubernetesObject) -> KubernetesObject:
    """A pod as the owner's controller makes it. A DaemonSet's is a ReplicaSet's, or the webhook would skip it."""
    kind = "ReplicaSet" if owner["kind"] in ("Deployment", "DaemonSet") else owner["kind"]
    metadata, made_from = owner["metadata"], owner["spec"]["template"]
    reference = {"apiVersion": owner["apiVersion"], "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}
    made = {
        "namespace": metadata["namespace"],
        "labels": made_from["metadata"].get("labels", {}),
        "ownerReferences": [{**reference, "controller": True}],
    }
    spec = dict(made_from["spec"])
    if kind == "StatefulSet":
        made["name"] = f"{metadata['name']}-0"
        spec |= {"hostname": made["name"], "subdomain": metadata["name"]}
    else:
        made["generateName"] = f"{metadata['name']}-"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def added_by_webhook(before: KubernetesObject, after: KubernetesObject) -> list[str]:
    """What the webhook alone writes, in the pod that the API server gives back."""
    found = [key for key in after["metadata"].get("annotations", {}) if key.startswith("multiarch-extender.io/")]
    wanted = before["spec"].get("affinity")
    return found + (["affinity"] if after["spec"].get("affinity") != wanted else [])


async def outcomes(world: World) -> tuple[float, float]:
    [service] = world.services
    patched = await service.metric("multiarch_admissions_total", outcome="patched")
    return patched, await service.metric("multiarch_admissions_total", outcome="unchanged")


async def test_the_webhook_adds_nothing_to_pods_of_fixed_templates(world: World) -> None:
    """A hundred templates and more: fixed, applied, and a pod created of each; then the same without the fix."""
    await start_webhook(world)
    where = await world.namespace()
    documents = list(workloads(world, where))
    text = yaml.safe_dump_all(documents, sort_keys=False)
    code, out, err = await fixed(world, text, "--write")
    assert (code, err) == (0, "")
    assert await fixed(world, out, "--check") == (0, "", "")
    after: list[dict[str, Any]] = list(yaml.safe_load_all(out))
    assert len(documents) == len(after) > 100
    patched, unchanged = await outcomes(world)
    changed = 0
    for original, mended in zip(documents, after, strict=True):
        owner = {**await world.api.create(mended), "kind": mended["kind"]}
        made = made_of(owner)
        assert added_by_webhook(made, await world.api.create(made)) == [], made["metadata"]
        control = made_of({**original, "metadata": owner["metadata"]})
        control["metadata"].pop("name", None)
        control["metadata"]["generateName"] = "unfixed-"
        is_patched = bool(added_by_webhook(control, await world.review(control)))
        assert is_patched == (original != mended)
        changed += is_patched
    assert changed > 80
    expected = (patched + changed, unchanged + 2 * len(after) - changed)
    # What is scraped may be a tenth of a second old.
    await eventually(lambda: outcomes(world), lambda found: found == expected)
