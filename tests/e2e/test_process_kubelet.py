"""The stand-in for kubelets: what becomes of a pod of the service, from its files to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject, fake_node, pod
from testbed.process_kubelet import ProcessKubelet, open_process_kubelet

pytestmark = pytest.mark.e2e

SETTINGS = "cluster: {mode: none}\nadmission: {listen: ''}\ncache: {url: 'memory:'}\nshutdown: {grace_seconds: 1.0}\n"
SECONDS = 60.0
ADDRESS = "10.0.0.77"


@pytest.fixture
async def kubelet(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> AsyncIterator[ProcessKubelet]:
    """The stand-in of a cluster with one node, and an account for pods."""
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "service"}})
    await api.create(fake_node("amd64", "amd64"))
    async with open_process_kubelet(api, control_plane.kubeconfig, tmp_path) as running:
        yield running


def service_pod(name: str, config: str) -> KubernetesObject:
    """A bound pod of the service with the settings of that ConfigMap."""
    made = pod(name, "registry.example.com/multiarch-extender:1", labels={"app": name}, spec={"nodeName": "amd64"})
    made["spec"]["serviceAccountName"] = "service"
    made["spec"]["volumes"] = [{"name": "configuration", "configMap": {"name": config}}]
    made["spec"]["containers"][0] |= {
        "args": ["serve", "--config=/etc/service/config.yaml"],
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/service"}],
        "ports": [{"name": "scheduler", "containerPort": 8880}, {"name": "operations", "containerPort": 8881}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "operations"}},
    }
    return made


def settings(name: str, text: str) -> KubernetesObject:
    """A ConfigMap of the service."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"config.yaml": text}}


async def reported(api: ApiClient, name: str, is_awaited: Callable[[KubernetesObject], bool]) -> KubernetesObject:
    """The status of the container, once it is as awaited."""

    def is_reported(found: KubernetesObject) -> bool:
        return any(map(is_awaited, found["status"].get("containerStatuses", ())))

    found = await api.wait_for("Pod", is_reported, timeout_seconds=SECONDS, fieldSelector=f"metadata.name={name}")
    return dict(found["status"]["containerStatuses"][0])


async def test_a_pod_waits_for_its_files_runs_and_ends(api: ApiClient, kubelet: ProcessKubelet) -> None:
    """It is ready when the service says so; a Service leads to it until then and no longer."""
    await api.create(service_pod("right", "right"))
    service = {"clusterIP": ADDRESS, "selector": {"app": "right"}, "ports": [{"port": 80, "targetPort": "operations"}]}
    await api.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "right"}, "spec": service})
    try:
        assert await kubelet.locate(ADDRESS, 80) is None
        await api.create(settings("right", SETTINGS))
        ran = await reported(api, "right", lambda container: bool(container["ready"]))
        assert ran["restartCount"] == 0
        port = await kubelet.locate(ADDRESS, 80)
        assert await kubelet.locate(ADDRESS, 81) is None
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        await api.request("DELETE", "/api/v1/namespaces/default/pods/right?gracePeriodSeconds=30")
        async with asyncio.timeout(SECONDS):
            while await is_there(api, "right"):
                await asyncio.sleep(0.1)
        assert await kubelet.locate(ADDRESS, 80) is None
        with pytest.raises(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz"):
                pass
    finally:
        await api.delete("Service", "right")
        await api.delete("ConfigMap", "right")


async def test_a_service_that_ends_is_started_again(api: ApiClient, kubelet: ProcessKubelet) -> None:
    """Settings that it refuses end it each time; the pod says how often, and is never ready."""
    await api.create(settings("wrong", "cluster: {modus: none}\n"))
    try:
        await api.create(service_pod("wrong", "wrong"))
        seen = await reported(api, "wrong", lambda container: container["restartCount"] >= 2)
        assert not seen["ready"]
    finally:
        await api.delete("ConfigMap", "wrong")


@pytest.mark.parametrize(("arguments", "phase"), [((), "Succeeded"), (("--only=pods",), "Failed")])
async def test_a_pod_that_is_to_run_once_ends_as_its_program_did(
    api: ApiClient, kubelet: ProcessKubelet, arguments: tuple[str, ...], phase: str
) -> None:
    """Here `doctor` under an account that may read nothing, which is a failure only where a check is asked for."""
    once = pod("once", "registry.example.com/multiarch-extender:1", spec={"nodeName": "amd64"})
    once["spec"] |= {"serviceAccountName": "service", "restartPolicy": "Never"}
    once["spec"]["containers"][0]["args"] = ["doctor", *arguments]
    await api.create(once)
    seen = await reported(api, "once", lambda container: "terminated" in container["state"])
    assert seen["state"]["terminated"]["exitCode"] == int(phase == "Failed")
    assert (await api.get("Pod", "once"))["status"]["phase"] == phase


async def test_another_pod_waits_and_can_be_deleted(api: ApiClient, kubelet: ProcessKubelet) -> None:
    """It is never said to run; deleted with a grace period it is gone, as a kubelet confirms."""
    await api.create(pod("other", "registry.example.com/other:1", spec={"nodeName": "amd64"}))
    await api.request("DELETE", "/api/v1/namespaces/default/pods/other?gracePeriodSeconds=30")
    async with asyncio.timeout(SECONDS):
        while await is_there(api, "other"):
            await asyncio.sleep(0.1)


async def is_there(api: ApiClient, name: str) -> bool:
    """Whether there is such a pod."""
    try:
        found = await api.get("Pod", name)
    except ApiError as exc:
        if exc.status == 404:
            return False
        raise
    assert found["status"]["phase"] in ("Pending", "Running")
    return True
