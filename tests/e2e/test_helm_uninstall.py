"""What `helm uninstall` leaves where pods may be held: nothing, by Helm 3 and by Helm 4, with the real Job controller.

No kubelet runs here: the test runs the Job's container as a process with the pod's account, and reports how it ended.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import KubernetesObject, fake_node, pod
from tests.e2e.installed_chart import (
    OURS,
    InstalledChart,
    Recorder,
    finalize_namespace,
    recording,
    rights_of,
    used_rights,
    write_account,
)
from tests.e2e.policies import GATE, dry_run, gates_of, until_free, until_held
from tests.e2e.test_helm_release import HelmRelease, helm, left_of, names_of, registry

__all__ = ["helm", "registry"]
pytestmark = pytest.mark.e2e

LABEL = "multiarch-extender.io/gated"
FOREIGN = {"name": "example.com/quota"}
POLICY: Mapping[str, Any] = {"modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}}
GATED: Mapping[str, Any] = {"config": {"admission": {"unknown": "gate"}}}
UNINSTALL = f"{OURS}-uninstall"


@pytest.fixture
async def installed(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, controller_manager: Path
) -> AsyncIterator[HelmRelease]:
    """A release to install, beside the Job controller. It is gone afterwards, and no pod is held any more."""
    if "mutatingadmissionpolicies" not in str(await api.request("GET", "/apis/admissionregistration.k8s.io/v1")):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    with control_plane.running_controllers(controller_manager, "job-controller"):
        yield helm
    with suppress(RuntimeError):
        await helm.run("uninstall", OURS, "--no-hooks")
    await until_free(api)
    await api.delete_all("Pod", OURS)


class Kubelet:
    """Runs the container of the Job's pod, and tells the API server how it has ended."""

    def __init__(self, api: ApiClient, control_plane: LocalCluster, server: str, folder: Path) -> None:
        self.output = ""
        self._api, self._control_plane, self._server, self._folder = api, control_plane, server, folder

    async def run(self) -> None:
        """Waits for the pod, and returns when it has ended."""
        while not (found := await self._pods()):
            await asyncio.sleep(0.1)
        (container,) = found[0]["spec"]["containers"]
        account = {"kind": "ServiceAccount", "metadata": {"name": found[0]["spec"]["serviceAccountName"]}}
        kubeconfig = await write_account(self._api, self._control_plane, self._server, [account], self._folder)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extender", *container["args"]),
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 100)
        self.output = out.decode()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"exitCode": process.returncode, "startedAt": now, "finishedAt": now, "reason": "Completed"}
        state = {"name": container["name"], "image": "", "imageID": "", "ready": False, "restartCount": 0}
        status = {
            "phase": "Failed" if process.returncode else "Succeeded",
            "startTime": now,
            "containerStatuses": [{**state, "state": {"terminated": ended}}],
        }
        path = f"/api/v1/namespaces/{OURS}/pods/{found[0]['metadata']['name']}/status"
        await self._api.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")

    async def _pods(self) -> list[KubernetesObject]:
        labelled = {"labelSelector": "app.kubernetes.io/component=uninstall"}
        return await self._api.list("Pod", OURS, **labelled)


@asynccontextmanager
async def uninstalling(
    api: ApiClient, control_plane: LocalCluster, folder: Path
) -> AsyncIterator[tuple[Recorder, Kubelet]]:
    """Runs the Job's container when it is there; what it asks of the API server is recorded."""
    async with recording(control_plane) as (recorder, server):
        kubelet = Kubelet(api, control_plane, server, folder)
        task = asyncio.create_task(kubelet.run())
        try:
            yield recorder, kubelet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def create_held(api: ApiClient) -> None:
    """Pods that our gate holds, one beside another owner's."""
    labels = {"labels": {LABEL: "true"}}
    for name, gates in (("one", [GATE]), ("two", [FOREIGN, GATE])):
        made = pod(name, "registry.example.com/none:1", spec={"schedulingGates": gates})
        await api.create({**made, "metadata": {**made["metadata"], **labels}})


async def held(api: ApiClient) -> set[str]:
    """The names of the pods that our gate holds."""
    return {each["metadata"]["name"] for each in await api.list("Pod", "default") if GATE in gates_of(each)}


async def left_by_hook(api: ApiClient, values: Mapping[str, Any]) -> list[str]:
    """What is left of the objects that Helm makes for an uninstallation."""
    return await left_of(
        api, [each for each in objects_of(render(values, hooks=True)) if each["metadata"]["name"] == UNINSTALL]
    )


async def test_nothing_is_left_where_the_api_server_held_pods(
    installed: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Two replicas run, and pods are created meanwhile. No policy, Lease or gate is left, nor anything of the hook."""
    of_other_tests = await names_of(api)
    await installed.install(POLICY)
    objects = await installed.objects()
    (tmp_path / "service").mkdir()
    (tmp_path / "hook").mkdir()
    async with recording(control_plane) as (_, server):
        account = await write_account(api, control_plane, server, objects, tmp_path / "service")
        async with InstalledChart(tmp_path / "service", objects, account, registry).replicas(2):
            await until_held(api)
            for name in ("one", "two"):
                await api.create(pod(name, f"{registry.host}/team/late:1"))
            assert await held(api) == {"one", "two"}
            ended = asyncio.Event()
            creating = asyncio.create_task(keep_creating(api, f"{registry.host}/team/late:1", ended))
            started = time.monotonic()
            async with uninstalling(api, control_plane, tmp_path / "hook") as (recorder, kubelet):
                await installed.run("uninstall", OURS)
            print(f"helm uninstall with held pods: {time.monotonic() - started:.1f} s\n{kubelet.output}")
            ended.set()
            await finalize_namespace(api, f"{OURS}-policy-canary")
            created = await creating
    assert created > 5
    assert await held(api) == set()
    assert gates_of(await dry_run(api, pod("after", "registry.example.com/none:1"))) == []
    assert await left_of(api, objects) == []
    assert await left_by_hook(api, POLICY) == []
    assert await names_of(api) <= of_other_tests
    hook = [each for each in objects_of(render(POLICY, hooks=True)) if each["metadata"]["name"] == UNINSTALL]
    assert recorder.refused == set()
    assert used_rights(recorder, hook) == rights_of(hook)


async def keep_creating(api: ApiClient, image: str, ended: asyncio.Event) -> int:
    """Creates pods until it is told to end; returns how many."""
    count = 0
    while not ended.is_set():
        await api.create(pod(f"meanwhile-{count}", image))
        count += 1
        await asyncio.sleep(0.25)
    return count


async def test_nothing_is_left_where_the_webhook_held_pods(
    installed: HelmRelease, api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """Gates of other owners stay. The webhook's configuration goes before the pods are let go."""
    of_other_tests = await names_of(api)
    await installed.install(GATED)
    objects = await installed.objects()
    await create_held(api)
    async with uninstalling(api, control_plane, tmp_path) as (recorder, kubelet):
        await installed.run("uninstall", OURS)
    await finalize_namespace(api, f"{OURS}-webhook-canary")
    assert "2 pods with our gate or its label in all namespaces: 2 ungated" in kubelet.output
    assert await held(api) == set()
    assert gates_of(await api.get("Pod", "two")) == [FOREIGN]
    assert await left_of(api, objects) == []
    assert await left_by_hook(api, GATED) == []
    assert await names_of(api) <= of_other_tests
    hook = [each for each in objects_of(render(GATED, hooks=True)) if each["metadata"]["name"] == UNINSTALL]
    assert recorder.refused == set()
    assert used_rights(recorder, hook) == rights_of(hook)


async def test_an_uninstallation_ends_though_pods_cannot_be_let_go(
    installed: HelmRelease, api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """The account has no rights at all: the Job says so, and succeeds. The policy goes with the release."""
    values = {**POLICY, "rbac": {"create": False}}
    await installed.install(values)
    objects = await installed.objects()
    await create_held(api)
    async with uninstalling(api, control_plane, tmp_path) as (_, kubelet):
        await installed.run("uninstall", OURS)
    assert "error: " in kubelet.output
    assert await held(api) == {"one", "two"}
    await finalize_namespace(api, f"{OURS}-policy-canary")
    assert await left_of(api, objects) == []
    assert await left_by_hook(api, values) == []


@pytest.mark.slow
async def test_where_no_pod_of_ours_can_run_helm_says_so_in_time(installed: HelmRelease, api: ApiClient) -> None:
    """The Job's time is over after 90 s, and Helm stops; without its hooks it goes on."""
    await installed.install(POLICY)
    objects = await installed.objects()
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)pre-delete|DeadlineExceeded|[Ff]ailed"):
        await installed.run("uninstall", OURS)
    assert 80 < time.monotonic() - started < 115
    assert await left_by_hook(api, POLICY) == []
    await installed.run("uninstall", OURS, "--no-hooks")
    with suppress(ApiError):
        await until_free(api)
    await finalize_namespace(api, f"{OURS}-policy-canary")
    assert await left_of(api, objects) == []
