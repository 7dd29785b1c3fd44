"""The admission policies as they are shipped, applied for a test and gone after it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import yaml

from testbed.api_client import ApiClient
from testbed.chart import POLICIES
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod

GATE = {"name": "multiarch-extender.io/platforms"}
"""A policy is at work about a second after it is written."""

ApplyPolicies = Callable[..., Awaitable[None]]
"""Applies the files of these names."""


@asynccontextmanager
async def applied_policies(api: ApiClient) -> AsyncIterator[ApplyPolicies]:
    """Yields a function that applies policies. After the block they are gone, and no pod is held any more."""
    applied: list[KubernetesObject] = []

    async def apply(*names: str) -> None:
        for name in names:
            for each in yaml.safe_load_all((POLICIES / f"{name}.yaml").read_text()):
                applied.append(each)
                await api.apply(each)

    try:
        yield apply
    finally:
        for each in reversed(applied):  # bindings first
            await api.delete(each["kind"], each["metadata"]["name"], "", each["apiVersion"])
    await until_free(api)


async def until_free(api: ApiClient) -> None:
    """Returns when a new pod is held by no gate, as a dry run shows."""
    await eventually(
        lambda: dry_run(api, pod("after", "registry.example.com/after:1")), lambda found: not gates_of(found)
    )


async def until_held(api: ApiClient, where: str = "default") -> None:
    """Returns when a new pod is held by the gate, as a dry run shows."""
    await eventually(
        lambda: dry_run(api, pod("before", "multiarch-extender.invalid/a:1", namespace=where)),
        lambda found: GATE in gates_of(found),
    )


async def dry_run(api: ApiClient, manifest: KubernetesObject) -> KubernetesObject:
    """The pod as it would be created."""
    where = manifest["metadata"]["namespace"]
    return await api.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", manifest)


def gates_of(found: KubernetesObject) -> list[KubernetesObject]:
    """The pod's scheduling gates."""
    return list(found["spec"].get("schedulingGates", []))
