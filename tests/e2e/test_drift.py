"""A tag that moves while pods of a real cluster use it: the event that `kubectl describe` then shows."""

import asyncio
import uuid

import aiohttp
import pytest

from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode, identity_manifests
from tests.e2e.pod_makers import deployment
from tests.e2e.world import World, allow

pytestmark = pytest.mark.e2e


async def replica_set(world: World, name: str, where: str, image: str) -> KubernetesObject:
    """The ReplicaSet that a controller would make of the new Deployment."""
    spec = {"containers": [{"name": "c", "image": image}]}
    owner = await world.api.create(deployment(name, where, spec))
    template = owner["spec"]["template"]
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": owner["metadata"]["uid"]}
    metadata = {
        "name": f"{name}-5d4f8c7b9f",
        "namespace": where,
        "ownerReferences": [{**reference, "controller": True}],
    }
    return await world.api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": metadata,
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template},
        }
    )


async def test_a_workload_whose_image_loses_its_platform_is_told_of_the_remedy(world: World) -> None:
    """With the shipped rights and those of the how-to; the digest in the event still runs where the pods run."""
    await world.create_nodes("arm64", 1)
    await world.create_nodes("amd64", 1)
    own = next(each["metadata"] for each in identity_manifests(Mode.SECOND) if each["kind"] == "ServiceAccount")
    await world.account(Mode.SECOND)
    rules: list[KubernetesObject] = [
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
    ]
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    await allow(world, "multiarch-drift", rules, subject)
    where = await world.namespace()
    image = world.images.fresh("amd64", "arm64")
    repository, _, tag = image.removeprefix(f"{world.registry.host}/").partition(":")
    digest = world.registry.add_index(repository, tag, ["linux/amd64", "linux/arm64"])
    made = await replica_set(world, "web", where, image)
    for number in range(2):
        found = pod(f"web-{number}", image, namespace=where, spec={"nodeName": "arm64-0"})
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": made["metadata"]["name"]}
        uid = made["metadata"]["uid"]
        found["metadata"]["ownerReferences"] = [{**reference, "uid": uid, "controller": True}]
        await world.api.create(found)
    service = await world.start_service("drift.events=true", admission=False)
    await world.warm(service, where, image)
    world.images.push(image, "amd64")
    told = await told_when_asked(world, where, image)
    assert (told["involvedObject"]["kind"], told["involvedObject"]["name"]) == ("Deployment", "web")
    assert told["type"] == "Warning"
    assert f"image {image} has lost linux/arm64" in told["message"]
    remedy = f"{world.registry.host}/{repository}@{digest}"
    assert remedy in told["message"]
    assert await service.metric("multiarch_image_drift_total", change="lost") == 1
    pinned = pod("pinned", remedy, namespace=where)
    pinned["metadata"]["uid"] = str(uuid.uuid4())
    answer = await filtered(world, pinned)
    assert answer == {"amd64-0", "arm64-0"}
    moved = pod("moved", image, namespace=where)
    assert await filtered(world, moved) == {"amd64-0"}


async def told_when_asked(world: World, where: str, image: str) -> KubernetesObject:
    """The event, which is sent once a pod has asked for the tag after its answer has become stale."""
    asking = pod("asking", image, namespace=where)
    asking["spec"]["containers"][0]["imagePullPolicy"] = "Always"  # for which an answer is fresh for a minute
    async with asyncio.timeout(120):
        while True:
            await filtered(world, asking)
            for event in await world.api.list("Event", where):
                if event["reason"] == "ImageLostPlatform":
                    return event
            await asyncio.sleep(0.5)


async def filtered(world: World, manifest: KubernetesObject) -> set[str]:
    """The nodes that the service lets the pod onto."""
    [service] = world.services
    arguments = {"Pod": manifest, "NodeNames": ["amd64-0", "arm64-0"]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.scheduler_url}/scheduler/filter", json=arguments) as response,
    ):
        found = await response.json()
    return set(found["NodeNames"])
