"""The chart as helm itself installs, upgrades and uninstalls it on a real control plane, by Helm 3 and by Helm 4."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, kept_to, pod
from tests.e2e.chart_hooks import hooks_of, stand_in
from tests.e2e.examined_installation import report_ready
from tests.e2e.installed_chart import (
    OURS,
    InstalledChart,
    balanced,
    recording,
    write_account,
)
from tests.e2e.releases import FROM_OUTSIDE, NAME, HelmRelease, helm, left_of, names_of, registry

__all__ = ["helm", "registry"]

pytestmark = pytest.mark.e2e

ADMISSIONREGISTRATION = "admissionregistration.k8s.io/v1"


async def client_config(api: ApiClient) -> dict[str, Any]:
    """How the API server calls the webhook now."""
    found = await api.get("MutatingWebhookConfiguration", NAME, api_version=ADMISSIONREGISTRATION)
    config: dict[str, Any] = found["webhooks"][0]["clientConfig"]
    return config


async def secret_data(api: ApiClient) -> dict[str, str]:
    """The data of the Secret, in base64."""
    found = await api.get("Secret", f"{NAME}-identity", OURS)
    return dict(found.get("data", {}))


async def until_reviewed(api: ApiClient, image: str) -> None:
    """Returns when a pod of that image gets node affinity; a review by the path with the token looks it up."""
    await eventually(
        lambda: api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("p", image)),
        lambda made: kept_to(made["spec"], "kubernetes.io/arch"),
        despite=ApiError,
    )


async def until_published(api: ApiClient) -> dict[str, Any]:
    """How the API server calls the webhook, when the service has written whom to trust."""
    return await eventually(lambda: client_config(api), lambda config: "caBundle" in config)


@asynccontextmanager
async def serving(
    objects: list[KubernetesObject],
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    folder: Path,
    ports: list[int],
) -> AsyncIterator[None]:
    """Two replicas of these objects of the chart; their ports come into the list once they are ready."""
    async with recording(control_plane) as (_, server):
        account = await write_account(api, control_plane, server, objects, folder)
        chart = InstalledChart(folder, objects, account, registry)
        async with chart.replicas(2):
            ports.extend(admission for _, admission, _ in chart.ports)
            try:
                yield
            finally:
                ports.clear()


async def test_from_nothing_to_reviews_and_to_nothing_again(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """No certificate is given. An upgrade keeps what the service has made, and uninstalling leaves nothing."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    ports: list[int] = []
    of_other_tests = await names_of(api)
    async with balanced(ports) as port:
        values = {"webhook": {"url": f"https://127.0.0.1:{port}"}}
        started = time.monotonic()
        await helm.install(values)
        objects = await helm.objects()
        async with serving(objects, api, control_plane, registry, tmp_path, ports):
            await until_reviewed(api, f"{registry.host}/team/old:1")
            print(f"self-managed certificates: from `helm install` to a review in {time.monotonic() - started:.1f} s")
            before, identity = await client_config(api), await secret_data(api)
            await helm.upgrade({"webhook": {**values["webhook"], "timeoutSeconds": 5}})
            assert await client_config(api) == before
            assert await secret_data(api) == identity
            for _ in range(20):
                await until_reviewed(api, f"{registry.host}/team/old:1")
        await helm.uninstall(api)
    assert await left_of(api, objects) == []
    assert await names_of(api) <= of_other_tests


async def test_helm_waits_until_the_webhook_is_reached_and_tests_it_when_asked(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """By the hooks of the chart; of what they take nothing is left but the pod that found something wrong."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    ports: list[int] = []
    async with balanced(ports) as port:
        checked_values = {"doctor": {"enabled": True}, "webhook": {"url": f"https://127.0.0.1:{port}"}}
        values = {**FROM_OUTSIDE, **checked_values}
        hooks = hooks_of(values)
        objects = objects_of(render(values))
        installing = asyncio.create_task(helm.install(values))
        checking = asyncio.create_task(stand_in(api, control_plane, values, "Job", tmp_path))
        await until_there(api, hooks[-1])
        for each in objects:
            if each["kind"] == "Deployment":
                await report_ready(api, each)
        assert not installing.done()
        async with serving(objects, api, control_plane, registry, tmp_path, ports):
            checked = await checking
            assert (checked.code, checked.states()) == (0, {"ok"})
            await installing
            assert await left_of(api, hooks) == []
            said = await asyncio.gather(helm.run("test", OURS), stand_in(api, control_plane, values, "Pod", tmp_path))
            assert "Succeeded" in said[0]
            assert (said[1].code, said[1].states()) == (0, {"ok"})
            assert await left_of(api, hooks) == []
        failing = asyncio.create_task(helm.run("test", OURS))
        code, output = await stand_in(api, control_plane, values, "Pod", tmp_path)
        assert (code, "wrong probe" in output) == (1, True)
        with pytest.raises(RuntimeError, match="fail"):
            await failing
        assert await left_of(api, hooks) == [f"Pod {OURS}-doctor-test"]
        await api.delete("Pod", f"{OURS}-doctor-test", OURS)
        await helm.uninstall(api)
    assert await left_of(api, [*objects, *hooks]) == []


async def until_there(api: ApiClient, wanted: KubernetesObject) -> None:
    """Returns when the object is there."""
    await eventually(lambda: left_of(api, [wanted]))
