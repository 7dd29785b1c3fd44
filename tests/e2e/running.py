"""What the tests with real nodes share: images that run, and what becomes of a pod on a node."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import BinariesMissing
from testbed.cluster_provider import ClusterProvider
from testbed.debian_package import ProgramMissing
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.images import Bundle
from testbed.nodes.images import build_hello, build_hello_index, build_pause
from testbed.nodes.machine import NodesImpossible, require_machine
from testbed.nodes.node import Architecture, RealNode
from testbed.nodes.programs import Containerd, NodePrograms, find_hello, find_node_programs
from testbed.objects import KubernetesObject, pod
from tests.e2e.world import World

BOTH: tuple[Architecture, ...] = ("amd64", "arm64")
SETTLED_SECONDS = 60.0
PAUSE_SECONDS = 0.25
REAL_NODES = "MULTIARCH_REAL_NODES"
"""The environment variable; `required` makes tests fail that would be skipped for want of a machine."""

CONTAINERDS = [
    pytest.param(version, marks=() if version is Containerd.DEBIAN else pytest.mark.slow) for version in Containerd
]
"""For tests with each containerd; those that have to be built first are for the night."""


class Outcome(StrEnum):
    """What becomes of a pod's container."""

    RUNS = "runs"
    REFUSED = "pull refused"
    CRASHES = "crashes"
    NOT_STARTED = "is not started"
    UNSETTLED = "none of these in time"


class Observation(NamedTuple):
    """The outcome of a pod, and the text that tells it: the container's log, or kubelet's message."""

    outcome: Outcome
    text: str = ""
    restarts: int = 0


class RealImages:
    """A registry on loopback with images of the program `hello`. `open_real_images` makes it."""

    def __init__(self, registry: DebianRegistry, folder: str = "") -> None:
        self.registry = registry
        self._folder = folder
        self.hello: Mapping[str, bytes] = find_hello((*BOTH, "386"))
        self.multi = self.push("multi", build_hello_index(BOTH, self.hello))
        self.pause = self.push("pause", build_pause(BOTH, self.hello))
        self.amd = self.push("amd", build_hello("amd64", self.hello))
        self.arm = self.push("arm", build_hello("arm64", self.hello))
        self.amd_index = self.push("amd-index", build_hello_index(["amd64"], self.hello))
        self.arm_index = self.push("arm-index", build_hello_index(["arm64"], self.hello))

    def push(self, name: str, image: Bundle) -> str:
        self.registry.push(f"{self._folder}{name}", "1", image)
        return self.reference(name)

    def reference(self, name: str) -> str:
        return f"{self.registry.host}/{self._folder}{name}:1"

    def under(self, folder: str) -> "RealImages":
        """Returns the same images under other names, which the service does not know yet."""
        return RealImages(self.registry, f"{folder}/")

    @property
    def settings(self) -> list[str]:
        host = self.registry.host
        return [f"registry.plain_http=['{host}']", f"registry.allow=['*', '{host}']"]


def skip(why: str) -> NoReturn:
    if os.environ.get(REAL_NODES) == "required":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def find_programs(pytestconfig: pytest.Config, version: Containerd) -> NodePrograms:
    """Returns the programs of real nodes; skips the test, or fails it, if the machine cannot run or fetch them.

    Programs that cannot be built are a failure.
    """
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            require_machine()
            find_docker_registry()
            return find_node_programs(version)
        except (NodesImpossible, ProgramMissing, BinariesMissing) as exc:
            why, is_broken = str(exc), isinstance(exc, BinariesMissing)
    if is_broken:
        pytest.fail(why, pytrace=False)
    skip(why)


def find_or_skip(pytestconfig: pytest.Config, find: Callable[[], Path]) -> Path:
    """Returns the program that `find` finds or builds; skips the test, or fails it, if it cannot."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            return find()
        except BinariesMissing as exc:
            why = str(exc)
    skip(why)


@contextmanager
def open_real_images(folder: Path) -> Iterator[RealImages]:
    with DebianRegistry(find_docker_registry(), folder) as registry:
        yield RealImages(registry)


@asynccontextmanager
async def open_nodes(
    cluster: ClusterProvider, api: ApiClient, programs: NodePrograms, images: RealImages
) -> AsyncIterator[Mapping[Architecture, RealNode]]:
    """Runs a node that is amd64 and one that says arm64; yields them by their architectures, which are their names."""
    nodes = {name: RealNode(name, programs, api, cluster.kubeconfig, images.pause, architecture=name) for name in BOTH}
    async with AsyncExitStack() as running:
        for node in nodes.values():
            await running.enter_async_context(node)
        yield nodes


async def observe(
    api: ApiClient, where: str, count: int, timeout_seconds: float = SETTLED_SECONDS
) -> dict[str, Observation]:
    """Returns what has become of each pod of the namespace, by its name, once `count` pods have settled.

    A pod that has not settled in time is `UNSETTLED`.
    """
    deadline = time.monotonic() + timeout_seconds
    settled: dict[str, Observation] = {}
    while True:
        found = {each["metadata"]["name"]: each for each in await api.list("Pod", where)}
        for name in found.keys() - settled.keys():
            if observation := await _settle(api, found[name]):
                settled[name] = observation
        if len(settled) >= count:
            return settled
        if time.monotonic() > deadline:
            return {name: settled.get(name, _unsettled(found[name])) for name in found}
        await asyncio.sleep(PAUSE_SECONDS)


async def _settle(api: ApiClient, pod: KubernetesObject) -> Observation | None:
    """Returns the outcome of the pod's only container, or None while it may become another one.

    A container whose program the kernel refuses is `running` for a moment, so only its output tells that it runs.
    """
    for status in pod["status"].get("containerStatuses") or []:
        state, restarts = status["state"], status["restartCount"]
        waiting = state.get("waiting", {})
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff"):
            return Observation(Outcome.REFUSED, waiting.get("message", ""), restarts)
        log = await _log(api, pod)
        if "running" in state and log.startswith("hello from"):
            return Observation(Outcome.RUNS, log, restarts)
        if "terminated" in state or (waiting.get("reason") == "CrashLoopBackOff" and log):
            return Observation(Outcome.CRASHES, log, restarts)
        if waiting.get("reason") in ("RunContainerError", "CrashLoopBackOff"):
            return Observation(Outcome.NOT_STARTED, waiting.get("message", ""), restarts)
    return None


def _unsettled(pod: KubernetesObject) -> Observation:
    return Observation(Outcome.UNSETTLED, str(pod["status"]))


async def _log(api: ApiClient, pod: KubernetesObject) -> str:
    try:
        return await api.log(pod["metadata"]["name"], pod["metadata"]["namespace"])
    except ApiError:  # nothing has been started yet
        return ""


OF_A_KIND = 8


PODS = 4 * OF_A_KIND


async def run_pods(world: World, images: RealImages, where: str, scheduler: str = "") -> dict[str, Observation]:
    """Creates 32 pods of four kinds at once; returns what has become of them."""
    kinds = {
        "amd": [images.amd] * OF_A_KIND,
        "arm": [images.arm] * OF_A_KIND,
        "multi": [images.multi] * OF_A_KIND,
        "index": [images.amd_index, images.arm_index] * (OF_A_KIND // 2),
    }
    named = {"schedulerName": scheduler} if scheduler else {}
    await world.api.create_all(
        pod(f"{kind}-{index}", image, namespace=where, cpu="10m", spec=named)
        for kind, chosen in kinds.items()
        for index, image in enumerate(chosen)
    )
    return await observe(world.api, where, PODS)


def failing(seen: Mapping[str, Observation]) -> list[str]:
    """Each pod that does not run, or that was started more than once, with the reason."""
    return [
        f"{name}: {each.outcome}, {each.restarts} restarts, {each.text}"
        for name, each in seen.items()
        if each.outcome is not Outcome.RUNS or each.restarts
    ]
