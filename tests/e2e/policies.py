"""What `multiarch-extender policies` prints, applied for a test and gone after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import yaml

from testbed.api_client import ApiClient
from testbed.cluster_provider import ClusterProvider
from testbed.objects import KubernetesObject, pod
from tests.unit.cli.commands import run

GATE = {"name": "multiarch-extender.io/platforms"}
AT_WORK_SECONDS = 15.0
"""A policy is at work about a second after it is written."""

ApplyPolicies = Callable[..., Awaitable[list[KubernetesObject]]]
"""Applies what the command prints for its arguments, and returns the objects."""


async def run_policies(cluster: ClusterProvider, *arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of `multiarch-extender policies` for the cluster."""
    return await run("policies", "--kubeconfig", str(cluster.kubeconfig), *arguments)


@asynccontextmanager
async def applied_policies(cluster: ClusterProvider, api: ApiClient) -> AsyncIterator[ApplyPolicies]:
    """Yields a function that applies policies. After the block they are gone, and no pod is held any more."""
    applied: list[KubernetesObject] = []

    async def apply(*arguments: str) -> list[KubernetesObject]:
        code, out, err = await run_policies(cluster, *arguments)
        assert (code, err) == (0, "")
        printed: list[KubernetesObject] = list(yaml.safe_load_all(out))
        for each in printed:
            applied.append(each)
            await api.apply(each)
        return printed

    try:
        yield apply
    finally:
        for each in reversed(applied):  # bindings first
            await api.delete(each["kind"], each["metadata"]["name"], "", each["apiVersion"])
    await until_free(api)


async def until_free(api: ApiClient) -> None:
    """Returns when a new pod is held by no gate, as a dry run shows."""
    async with asyncio.timeout(AT_WORK_SECONDS):
        while gates_of(await dry_run(api, pod("after", "registry.example.com/after:1"))):
            await asyncio.sleep(0.1)


async def until_held(api: ApiClient, where: str = "default") -> None:
    """Returns when a new pod is held by the gate, as a dry run shows."""
    async with asyncio.timeout(AT_WORK_SECONDS):
        while GATE not in gates_of(
            await dry_run(api, pod("before", "multiarch-extender.invalid/a:1", namespace=where))
        ):
            await asyncio.sleep(0.1)


async def dry_run(api: ApiClient, manifest: KubernetesObject) -> KubernetesObject:
    """The pod as it would be created."""
    where = manifest["metadata"]["namespace"]
    return await api.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", manifest)


def gates_of(found: KubernetesObject) -> list[KubernetesObject]:
    """The pod's scheduling gates."""
    return list(found["spec"].get("schedulingGates", []))
