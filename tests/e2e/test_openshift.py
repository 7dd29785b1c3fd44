"""A cluster without internet, whose images come by OpenShift's mirror objects on a real API server."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from extender.demo.registry import EmbeddedRegistry
from testbed.api_client import ApiClient, ApiError
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject
from testbed.shipped_files import Mode, identity_manifests
from tests.e2e.load import leaning_to
from tests.e2e.test_drift import allow
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

UPSTREAM = "disconnected.example"
CONFIG, OPERATOR = "config.openshift.io", "operator.openshift.io"
KINDS = {
    "ImageDigestMirrorSet": (CONFIG, "v1", "imagedigestmirrorsets"),
    "ImageTagMirrorSet": (CONFIG, "v1", "imagetagmirrorsets"),
    "Image": (CONFIG, "v1", "images"),
    "ImageContentSourcePolicy": (OPERATOR, "v1alpha1", "imagecontentsourcepolicies"),
}
RULES: list[KubernetesObject] = [
    {"apiGroups": [group], "resources": [plural], "verbs": ["list", "watch"]} for group, _, plural in KINDS.values()
]
FOLLOWED_SECONDS = 5.0


def definition(kind: str) -> KubernetesObject:
    """A CustomResourceDefinition of the kind that takes any spec."""
    group, version, plural = KINDS[kind]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    served = {"name": version, "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/openshift/api"},
        },
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [served]},
    }


async def is_served(api: ApiClient, kind: str) -> bool:
    """Whether the API server serves the kind."""
    group, version, plural = KINDS[kind]
    try:
        found = await api.request("GET", f"/apis/{group}/{version}")
    except ApiError:
        return False
    return plural in {each["name"] for each in found["resources"]}


async def install(world: World, mode: Mode, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Creates the kinds, and gives the service's account the right to watch them."""
    for kind in kinds:
        await world.api.apply(definition(kind))
    async with asyncio.timeout(30):
        while not all([await is_served(world.api, kind) for kind in kinds]):
            await asyncio.sleep(0.1)
    own = next(each["metadata"] for each in identity_manifests(mode) if each["kind"] == "ServiceAccount")
    await world.account(mode)
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    await allow(world, f"multiarch-openshift-{mode}", RULES, subject)


def mirror_set(kind: str, mirror: str, source: str = UPSTREAM) -> KubernetesObject:
    """A mirror set that lets nobody contact the source."""
    group, version, _ = KINDS[kind]
    key = {"ImageDigestMirrorSet": "imageDigestMirrors", "ImageTagMirrorSet": "imageTagMirrors"}[kind]
    entry = {"source": source, "mirrors": [mirror], "mirrorSourcePolicy": "NeverContactSource"}
    return {
        "apiVersion": f"{group}/{version}",
        "kind": kind,
        "metadata": {"name": "disconnected"},
        "spec": {key: [entry]},
    }


def by_upstream(world: World, *architectures: str) -> str:
    """A new image, by the name of the registry that nobody reaches."""
    image = world.images.fresh(*architectures)
    named = image.replace(world.registry.host, UPSTREAM)
    world.images.architectures[named] = world.images.architectures[image]
    return named


SETTINGS = ("registry.openshift=true",)
WAYS = {
    "second scheduler": (Mode.SECOND, SETTINGS),
    "webhook": (Mode.WEBHOOK, SETTINGS),
    "gate": (Mode.WEBHOOK, (*SETTINGS, "admission.unknown=gate", "admission.wait_seconds=0.1")),
}


@pytest.mark.parametrize("way", WAYS)
async def test_two_hundred_pods_of_mirrored_images_stand_rightly(world: World, way: str) -> None:
    """By tag and by digest; each image is known, though its own registry has no address."""
    mode, settings = WAYS[way]
    await install(world, mode)
    for kind in ("ImageDigestMirrorSet", "ImageTagMirrorSet"):
        await world.api.apply(mirror_set(kind, world.registry.host))
    for architecture in ("amd64", "arm64"):
        await world.create_nodes(architecture, 6, cpu="64")
    service = await world.start_service(*settings, mode=mode)
    if way == "gate":
        async with asyncio.timeout(30):
            while "leading" not in await service.readiness():
                await asyncio.sleep(0.1)
    where = await world.namespace(second=mode is Mode.SECOND)
    if mode is Mode.WEBHOOK:
        await world.register_webhook(service)
    scheduling = world.second_scheduler(service) if mode is Mode.SECOND else world.default_scheduler("")
    named = "multiarch-scheduler" if mode is Mode.SECOND else ""
    with scheduling:
        for number, (leaning, architectures) in enumerate(
            [("arm64", ["amd64"]), ("amd64", ["arm64"]), ("amd64", ["amd64", "arm64"]), ("arm64", ["amd64"])]
        ):
            image = by_upstream(world, *architectures)
            await world.create_pods(
                where, 50, image, prefix=f"kind-{number}", scheduler=named, spec=leaning_to(leaning)
            )
        await world.wait_all_bound(where, 200)
    await world.assert_placed_rightly(f"OpenShift's mirrors, {way}", where, 200)
    assert await unknown_images(service) == 0
    async with asyncio.timeout(10):  # the fetcher tells what it has counted once a second
        while not await service.metric("multiarch_mirror_requests_total", outcome="answered"):
            await asyncio.sleep(0.1)


async def unknown_images(service: ExtenderProcess) -> float:
    """How many images the service does not know."""
    return await service.metric("multiarch_images", state="unknown")


async def test_mirror_that_is_moved_is_followed(world: World) -> None:
    """By editing the object; the new place has no TLS, which the image configuration says."""
    await install(world, Mode.SECOND)
    await world.api.apply(mirror_set("ImageTagMirrorSet", world.registry.host))
    service = await world.start_service(
        *SETTINGS, "registry.allow=['*','127.0.0.1']", "cache.tag_seconds=1", mode=Mode.SECOND
    )
    async with EmbeddedRegistry() as moved:
        await service.ask("filter", filter_of(by_upstream(world, "amd64")))
        insecure = {"registrySources": {"insecureRegistries": [moved.host]}}
        cluster = {"apiVersion": f"{CONFIG}/v1", "kind": "Image", "metadata": {"name": "cluster"}, "spec": insecure}
        await world.api.apply(cluster)
        await world.api.apply(mirror_set("ImageTagMirrorSet", f"{moved.host}"))
        began = time.monotonic()
        while not moved.requests:
            tag = f"{time.monotonic_ns()}"
            await service.ask("filter", filter_of(f"{UPSTREAM}/team/app:{tag}"))
            await asyncio.sleep(0.1)
            assert time.monotonic() - began < FOLLOWED_SECONDS
        world.figure(f"OpenShift's mirror moved: followed {time.monotonic() - began:.2f} s after the edit")


def filter_of(image: str) -> KubernetesObject:
    """ExtenderArgs for a pod of the image."""
    spec = {"containers": [{"name": "c", "image": image}]}
    return {"Pod": {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}, "NodeNames": ["nowhere"]}
