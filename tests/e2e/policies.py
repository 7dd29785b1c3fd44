"""The admission policies as they are shipped, applied for a test and gone after it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import yaml

from testbed.api_client import ApiClient, ApiError
from testbed.chart import POLICIES
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod

GATE = {"name": "multiarch-extender.io/platforms"}

ApplyPolicies = Callable[..., Awaitable[None]]
"""Applies the files of these names."""


async def has_mutating_policies(api: ApiClient) -> bool:
    """Kubernetes serves MutatingAdmissionPolicy from 1.36 on."""
    return "mutatingadmissionpolicies" in str(await api.request("GET", "/apis/admissionregistration.k8s.io/v1"))


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
    where = manifest["metadata"]["namespace"]
    return await api.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", manifest)


def gates_of(found: KubernetesObject) -> list[KubernetesObject]:
    return list(found["spec"].get("schedulingGates", []))


async def refusal(api: ApiClient, path: str, body: Any, method: str = "POST", content_type: str = "") -> str:
    """What the API server says against the request; empty if nothing."""
    try:
        await api.request(method, path, body, content_type=content_type or "application/json")
    except ApiError as exc:
        return str(exc)
    return ""


async def refusal_of_pod(api: ApiClient, made: KubernetesObject) -> str:
    """What the API server says against the pod in a dry run; empty if nothing."""
    return await refusal(api, f"/api/v1/namespaces/{made['metadata']['namespace']}/pods?dryRun=All", made)
