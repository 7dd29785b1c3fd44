"""Images that claim platforms falsely, on real nodes: who meets a lie, and what a kubelet says of it."""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.images import Bundle, join_index
from testbed.nodes.images import PROGRAM, build_image
from testbed.nodes.programs import Containerd, is_built
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.running import CONTAINERDS, Observation, Outcome, RealImages, find_programs, observe, open_nodes
from tests.e2e.world import SCHEDULER_NAMES, World

pytestmark = pytest.mark.e2e

LATER = 4


class Stage(NamedTuple):
    """A namespace whose pods the second scheduler places on two real nodes, and the service that it asks."""

    world: World
    service: ExtenderProcess
    where: str

    async def learn(self, image: str) -> None:
        """Asks about a pod of the image until the service has found out that it is kept off arm64."""
        args = {"Pod": self._pod(image, "asked"), "NodeNames": ["amd64", "arm64"]}
        await eventually(lambda: self.service.ask("filter", args), lambda found: found["NodeNames"] == ["amd64"])

    async def place(self, count: int, image: str, prefix: str) -> dict[str, Observation]:
        return await self._create([self._pod(image, f"{prefix}-{index}") for index in range(count)])

    async def force(self, image: str, name: str) -> Observation:
        return (await self._create([self._pod(image, name, nodeName="arm64")]))[name]

    async def nodes(self, prefix: str) -> set[str]:
        pods = await self.world.api.list("Pod", self.where)
        return {each["spec"]["nodeName"] for each in pods if each["metadata"]["name"].startswith(prefix)}

    async def _create(self, pods: Sequence[KubernetesObject]) -> dict[str, Observation]:
        names = {each["metadata"]["name"] for each in pods}
        earlier = len(await self.world.api.list("Pod", self.where))
        await self.world.api.create_all(pods)
        seen = await observe(self.world.api, self.where, earlier + len(pods))
        return {name: each for name, each in seen.items() if name in names}

    def _pod(self, image: str, name: str, **spec: object) -> KubernetesObject:
        """A pod that ends with its program, and whose status then has the last of its log."""
        named = {"schedulerName": SCHEDULER_NAMES[Mode.SECOND], "restartPolicy": "Never", **spec}
        found = pod(name, image, namespace=self.where, cpu="10m", spec=named)
        found["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
        return found


@asynccontextmanager
async def staged(
    world: World, pytestconfig: pytest.Config, images: RealImages, version: Containerd, *settings: str
) -> AsyncIterator[Stage]:
    """Runs two nodes with that containerd, the second scheduler and the service; skips the test if it is not built."""
    if not is_built(version):
        pytest.skip(f"containerd {version} is not built: `python -m testbed.binaries containerd` builds it")
    programs = find_programs(pytestconfig, version)
    service = await world.start_service("admission.node_affinity=none", *images.settings, *settings, mode=Mode.SECOND)
    where = await world.namespace()
    async with open_nodes(world.cluster, world.api, programs, images):
        with world.scheduler(Mode.SECOND, service):
            yield Stage(world, service, where)
            await world.api.delete_all("Pod", where)


def honest(images: RealImages, architecture: str) -> Bundle:
    """The program for that architecture, with a layer that no other image has."""
    return build_image(f"linux/{architecture}", {PROGRAM: images.hello[architecture], "/id": uuid.uuid4().bytes})


def lying(images: RealImages) -> Bundle:
    """What its configuration says is for arm64, with a program for amd64."""
    return build_image("linux/arm64", {PROGRAM: images.hello["amd64"], "/id": uuid.uuid4().bytes})


def push(images: RealImages, name: str, on_arm64: Bundle) -> str:
    """Pushes an index of an honest image for amd64 and of another under arm64; returns its reference."""
    return images.push(name, join_index([("linux/amd64", honest(images, "amd64")), ("linux/arm64", on_arm64)]))


@pytest.mark.parametrize("version", CONTAINERDS)
async def test_no_pod_goes_where_an_image_lies(
    world: World, pytestconfig: pytest.Config, real_images: RealImages, version: Containerd
) -> None:
    """An image that was refuted, one whose manifest is missing, and one whose configuration contradicts the index.

    The pod that is made to go there crashes, or the kubelet says in its own words what has become of it.
    """
    child = honest(real_images, "arm64")
    images = {
        "refuted": push(real_images, f"refuted/{version}", lying(real_images)),
        "missing": push(real_images, f"missing/{version}", child),
        "contradictory": push(real_images, f"contradictory/{version}", honest(real_images, "amd64")),
    }
    repository = images["missing"].removeprefix(f"{real_images.registry.host}/").rpartition(":")[0]
    real_images.registry.delete(repository, child.digest)
    forced: dict[str, Observation] = {}
    async with staged(world, pytestconfig, real_images, version, "registry.verify=background") as stage:
        for name, image in images.items():
            await stage.learn(image)
            seen = await stage.place(LATER, image, name)
            assert {each.outcome for each in seen.values()} == {Outcome.RUNS}, seen
            assert await stage.nodes(name) == {"amd64"}
            forced[name] = await stage.force(image, f"forced-{name}")
    assert forced["refuted"].outcome is Outcome.CRASHES, forced
    assert forced["missing"].outcome is Outcome.REFUSED, forced
    assert "not found" in forced["missing"].text
    assert forced["contradictory"].outcome in (Outcome.REFUSED, Outcome.CRASHES), forced
