"""Gated pods for the tests of gates: as a policy of the API server makes them, and when each of them is let go."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import msgspec

from testbed.api_client import ApiError
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import USUAL_SECONDS, eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from testbed.tcp_proxy import TcpProxy
from tests.e2e.load import leaning_to
from tests.e2e.world import World

GATE = "multiarch-extender.io/platforms"
GATED = {"multiarch-extender.io/gated": "true"}
OTHERS = {"amd64": "arm64", "arm64": "amd64"}

# The controller alone: no listener but the operations'.
CONTROLLER = ("admission.unknown=gate", "admission.listen=''")


async def start_controller(world: World, *settings: str) -> ExtenderProcess:
    """A service that lets gated pods go and answers nobody, with the shipped rights of the webhook's account."""
    return await world.start_service(*CONTROLLER, *settings, mode=Mode.WEBHOOK, admission=False)


async def proxied_account(world: World, proxy: TcpProxy, folder: Path) -> Path:
    """A kubeconfig of the webhook's account that reaches the API server through the proxy."""
    kubeconfig = msgspec.yaml.decode((await world.account(Mode.WEBHOOK)).read_bytes(), type=KubernetesObject)
    for cluster in kubeconfig["clusters"]:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(kubeconfig))
    return path


def gated_pod(name: str, image: str, where: str, leaning: str, spec: Mapping[str, Any] | None = None) -> Any:
    """A held pod that prefers an architecture on which it may not run."""
    made = pod(name, image, namespace=where, spec={**leaning_to(leaning), **(spec or {})})
    made["metadata"].setdefault("labels", {}).update(GATED)
    made["spec"]["schedulingGates"] = [{"name": GATE}]
    return made


async def create_gated(world: World, where: str, count: int, images: Sequence[str], prefix: str = "held") -> None:
    """Creates so many held pods, of these images in turn, each leaning to where the image does not run.

    An image that is not pushed yet will be one for arm64 alone.
    """
    pods = []
    for number in range(count):
        image = images[number % len(images)]
        [architecture] = world.images.architectures.get(image, {"arm64"})
        pods.append(gated_pod(f"{prefix}-{number}", image, where, OTHERS[architecture]))
    await world.api.create_all(pods)


class Releases:
    """When each pod of a namespace lost our gate, by the monotonic clock."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.held: set[str] = set()

    async def follow(self, world: World, where: str) -> None:
        """Notes every pod until cancelled, also after the API server was away."""
        while True:
            try:
                async with aclosing(world.api.watch("Pod", where)) as changes:
                    async for change, found in changes:
                        self._note(change, found)
            except (aiohttp.ClientError, ApiError, OSError, TimeoutError):
                await asyncio.sleep(0.1)

    def _note(self, change: str, found: KubernetesObject) -> None:
        name = found["metadata"]["name"]
        is_held = any(gate["name"] == GATE for gate in found["spec"].get("schedulingGates") or ())
        if is_held and change != "DELETED":
            self.held.add(name)
        else:
            self.held.discard(name)
            self.at.setdefault(name, time.monotonic())

    async def are(self, count: int, timeout_seconds: float = USUAL_SECONDS) -> None:
        """Returns when so many pods were let go. Raises TimeoutError."""
        try:
            await eventually(lambda: len(self.at) >= count, seconds=timeout_seconds)
        except TimeoutError:
            raise TimeoutError(f"{len(self.at)} of {count} pods let go in {timeout_seconds:g} s") from None

    async def holds(self, count: int) -> None:
        """Returns when so many pods are held. Controllers make some twenty of a kind a second."""
        await eventually(lambda: len(self.held) >= count)

    def after(self, began: float) -> list[float]:
        """How many seconds after `began` each pod was let go that was let go later."""
        return sorted(at - began for at in self.at.values() if at >= began)


@asynccontextmanager
async def observed(world: World, where: str) -> AsyncIterator[Releases]:
    """Notes when the namespace's pods are let go."""
    releases = Releases()
    following = asyncio.create_task(releases.follow(world, where))
    try:
        yield releases
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def spread(seconds: Sequence[float]) -> str:
    """The median, the 99th percentile and the longest of these times."""
    cuts = quantiles(seconds, n=100) if len(seconds) > 1 else [seconds[0]] * 99
    return f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, longest {max(seconds):.2f} s"


async def start_holding(world: World, *settings: str, registries: tuple[EmbeddedRegistry, ...] = ()) -> ExtenderProcess:
    """The shipped webhook that gates on doubt, registered, once it knows that gates are lifted."""
    hosts = [world.registry.host, *(registry.host for registry in registries)]
    listed = ",".join(f"'{host}'" for host in hosts)
    service = await world.start_service(
        "admission.unknown=gate",
        "admission.wait_seconds=0.3",
        "registry.pull_secrets=true",
        f"registry.plain_http=[{listed}]",
        f"registry.allow=['*',{listed}]",
        *settings,
        mode=Mode.WEBHOOK,
    )
    await eventually(service.readiness, lambda found: "leading" in found)
    await world.register_webhook(service)
    return service
