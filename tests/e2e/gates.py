"""Gated pods for the tests of gates: as a policy of the API server makes them, and when each of them is let go."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from testbed.api_client import ApiError
from testbed.eventually import USUAL_SECONDS, eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject
from testbed.shipped_files import Mode
from testbed.tcp_proxy import TcpProxy
from tests.e2e.world import World

GATE = "multiarch-extender.io/platforms"
GATED = {"multiarch-extender.io/gated": "true"}
OTHERS = {"amd64": "arm64", "arm64": "amd64"}


async def start_controller(world: World, *settings: str) -> ExtenderProcess:
    """A service that lets gated pods go and answers nobody, with the shipped rights of the webhook's account."""
    alone = ("admission.unknown=gate", "admission.listen=''")
    return await world.start_service(*alone, *settings, mode=Mode.WEBHOOK, admission=False)


async def start_holding(world: World, *settings: str) -> ExtenderProcess:
    """The shipped webhook that gates on doubt, registered, once it knows that gates are lifted."""
    doubting = ("admission.unknown=gate", "admission.wait_seconds=0.3")
    service = await world.start_service(*doubting, *settings, mode=Mode.WEBHOOK)
    await eventually(service.readiness, lambda found: "leading" in found)
    await world.register_webhook(service)
    return service


async def proxied_account(world: World, mode: Mode, proxy: TcpProxy, folder: Path) -> Path:
    """A kubeconfig of that mode's account that reaches the API server through the proxy."""
    kubeconfig = msgspec.yaml.decode((await world.account(mode)).read_bytes(), type=KubernetesObject)
    for cluster in kubeconfig["clusters"]:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(kubeconfig))
    return path


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

    async def are(self, count: int) -> None:
        """Returns when so many pods were let go. Raises TimeoutError."""
        try:
            await eventually(lambda: len(self.at) >= count)
        except TimeoutError:
            raise TimeoutError(f"{len(self.at)} of {count} pods let go in {USUAL_SECONDS:g} s") from None

    async def holds(self, count: int) -> None:
        """Returns when so many pods are held. Controllers make some twenty of a kind a second."""
        await eventually(lambda: len(self.held) >= count)


@asynccontextmanager
async def observed(world: World, where: str) -> AsyncIterator[Releases]:
    releases = Releases()
    following = asyncio.create_task(releases.follow(world, where))
    try:
        yield releases
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
