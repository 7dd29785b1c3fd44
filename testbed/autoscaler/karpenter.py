"""Karpenter with its provider of fake nodes, as a process beside a control plane in `own_network`.

Its ports listen on all addresses, which is why it runs in a network namespace.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.api_client import ApiClient, ApiError
from testbed.autoscaler.instance_types import instance_types
from testbed.objects import KubernetesObject
from testbed.processes import Process, answers, free_port

READY_SECONDS = 60.0  # for a busy machine; usually it takes one
BATCH_SECONDS = 2  # without another pod that waits, after which it buys for all of them; a busy machine takes a while
PROVIDER = "karpenter.kwok.sh"
KARPENTER = "karpenter.sh/v1"
NODE_CLASS: KubernetesObject = {
    "apiVersion": f"{PROVIDER}/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
    "spec": {},
}


class Karpenter:
    """A running Karpenter. `running_karpenter` makes it.

    `bought` has the architecture of every node that it has bought so far, by the node's name.
    """

    def __init__(self, api: ApiClient, process: Process) -> None:
        self.bought: dict[str, str] = {}
        self._api, self._process = api, process

    async def create_pools(self, *pools: KubernetesObject) -> None:
        """Creates the NodePools, with fake nodes in place of a cloud's; returns when they are ready.

        Nothing is consolidated before `consolidate` allows it.
        """
        for pool in pools:
            node_class = {"group": PROVIDER, "kind": NODE_CLASS["kind"], "name": NODE_CLASS["metadata"]["name"]}
            template, disruption = pool["spec"]["template"], pool["spec"]["disruption"]
            changed = {
                "template": {**template, "spec": {**template["spec"], "nodeClassRef": node_class}},
                "disruption": {**disruption, "consolidateAfter": "Never"},
            }
            await self._api.create({**pool, "spec": {**pool["spec"], **changed}})
        names = {pool["metadata"]["name"] for pool in pools}
        async with asyncio.timeout(READY_SECONDS):
            while not names <= await self._ready_pools():
                await asyncio.sleep(0.05)

    async def consolidate(self, pool: KubernetesObject, consolidate_after: str) -> None:
        """Lets Karpenter move the pods of that pool's nodes to cheaper ones, after so long without a change."""
        change = {"spec": {"disruption": {"consolidateAfter": consolidate_after}}}
        await self._api.patch("NodePool", pool["metadata"]["name"], change, api_version=KARPENTER)

    async def follow_nodes(self) -> None:
        """Records each node bought, and makes it Ready as its kubelet would, until cancelled."""
        while True:  # a busy server may end the watch
            async with aclosing(self._api.watch("Node")) as changes:
                async for change, node in changes:
                    if change == "ADDED" and node["metadata"]["name"] not in self.bought:
                        architecture = node["metadata"]["labels"]["kubernetes.io/arch"]
                        self.bought[node["metadata"]["name"]] = architecture
                        await self._make_ready(node["metadata"]["name"], architecture)

    def tail(self) -> str:
        """Returns the end of its log."""
        return self._process.tail()

    async def _ready_pools(self) -> set[str]:
        pools = await self._api.list("NodePool", api_version=KARPENTER)
        return {
            pool["metadata"]["name"]
            for pool in pools
            for each in pool.get("status", {}).get("conditions", [])
            if (each["type"], each["status"]) == ("Ready", "True")
        }

    async def _make_ready(self, name: str, architecture: str) -> None:
        system = {"architecture": architecture, "operatingSystem": "linux"}
        status = {"conditions": [{"type": "Ready", "status": "True", "reason": "Fake"}], "nodeInfo": system}
        try:
            path, merge_patch = f"/api/v1/nodes/{name}/status", "application/merge-patch+json"
            await self._api.request("PATCH", path, {"status": status}, content_type=merge_patch)
        except ApiError as exc:
            if exc.status != 404:  # it is gone already
                raise


@asynccontextmanager
async def running_karpenter(
    programs: Path, api: ApiClient, kubeconfig: Path, folder: Path, prices: Mapping[str, float]
) -> AsyncIterator[Karpenter]:
    """Runs Karpenter inside the block, with its CRDs in the cluster and no NodePool yet.

    `find_karpenter` finds the folder of its programs; `prices` are those of one CPU of each architecture. Raises
    ProcessFailed.
    """
    await _create_definitions(programs, api)
    types = folder / "instance-types.json"
    types.write_bytes(msgspec.json.encode(instance_types(prices)))
    health = free_port()
    environment = {
        "KUBECONFIG": kubeconfig,
        "SYSTEM_NAMESPACE": "kube-system",
        "KARPENTER_SERVICE": "karpenter",
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": free_port(),
        "HEALTH_PROBE_PORT": health,
        "INSTANCE_TYPES_FILE_PATH": types,
        "BATCH_IDLE_DURATION": f"{BATCH_SECONDS}s",
    }
    command = [shutil.which("env") or "env", *(f"{name}={value}" for name, value in environment.items())]
    process = Process("karpenter", [*command, str(programs / "karpenter")], folder / "karpenter.log")
    karpenter = Karpenter(api, process)
    try:
        process.wait_until(partial(answers, health, "/readyz"), READY_SECONDS)
        await api.create(NODE_CLASS)
        following = asyncio.create_task(karpenter.follow_nodes())
        try:
            yield karpenter
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following  # raises what has ended it before
    except BaseException as exc:
        exc.add_note(karpenter.tail())
        raise
    finally:
        process.stop(grace_seconds=0)  # it has nothing to save


async def _create_definitions(programs: Path, api: ApiClient) -> None:
    """Creates Karpenter's CRDs; returns when the API server serves them."""
    definitions: list[dict[str, Any]] = [yaml.safe_load(file.read_text()) for file in sorted(programs.glob("*.yaml"))]
    for definition in definitions:
        await api.apply(definition)
    async with asyncio.timeout(READY_SECONDS):
        for definition in definitions:
            spec = definition["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][-1]['name']}/{spec['names']['plural']}"
            while not await _is_served(api, path):
                await asyncio.sleep(0.05)


async def _is_served(api: ApiClient, path: str) -> bool:
    try:
        await api.request("GET", path)
    except ApiError as exc:
        if exc.status not in (404, 429):  # 429: its storage is being made
            raise
        return False
    return True
