"""The rights of the second scheduler: its roles give what its two processes use, and nothing else.

Kube-scheduler and the service of the second scheduler share an account; here each has a recorder of its own. That the
webhook and the default scheduler's part use all they are given is in `test_chart.py`.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import msgspec
import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import Binaries
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.extender_process import write_token_kubeconfig
from testbed.objects import KubernetesObject, fake_node, pod
from testbed.processes import Process, free_port
from tests.e2e.installed_chart import (
    GATED,
    MODES,
    OURS,
    PULL_SECRET,
    InstalledChart,
    create_held,
    installed,
)
from tests.e2e.rights import ONCE_A_POD_CHANGES, Recorder, recording, rights_of, used_rights

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

RBAC = "rbac.authorization.k8s.io/v1"
LEADER = "multiarch-extender-scheduler-leader"
NAMED = {"schedulerName": "multiarch-scheduler", "imagePullSecrets": [{"name": "pull"}]}
LATE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "late"},
    "provisioner": "example.com/nobody",
    "volumeBindingMode": "WaitForFirstConsumer",
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "late", "namespace": "default"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@pytest.fixture
async def nodes(api: ApiClient) -> None:
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)


@pytest.fixture
async def claim(api: ApiClient) -> AsyncIterator[None]:
    """A volume claim that is bound only once its pod has a node; nobody binds it."""
    await api.apply(LATE)
    await api.apply(CLAIM)
    yield
    await api.delete("PersistentVolumeClaim", "late")
    with suppress(ApiError):  # gone already, where nothing protects it
        await api.patch("PersistentVolumeClaim", "late", {"metadata": {"finalizers": None}})
    await api.delete("StorageClass", "late", "", "storage.k8s.io/v1")


# --- the second scheduler's kube-scheduler as a process, under the chart's account


@asynccontextmanager
async def second_scheduler(
    api: ApiClient, chart: InstalledChart, admin: Path, folder: Path, program: Path
) -> AsyncIterator[str]:
    """Kube-scheduler with the account, the file and the flags of its pod, started; where it tells whether it is ready.

    It reaches the API server by the address in the kubeconfig `admin`.
    """
    (own,) = (each["metadata"]["name"] for each in chart.objects if each["kind"] == "ServiceAccount")
    account = await write_token_kubeconfig(api, admin, folder / "scheduler.kubeconfig", own, OURS)
    (text,) = (each["data"]["scheduler.yaml"] for each in chart.objects if each["kind"] == "ConfigMap")
    configuration: dict[str, Any] = msgspec.yaml.decode(text)
    configuration["clientConnection"] = {"kubeconfig": str(account)}
    configuration["extenders"][0]["urlPrefix"] = f"{_service(chart)}/scheduler"
    file = account.with_name("scheduler.yaml")
    file.write_bytes(msgspec.yaml.encode(configuration))
    (container,) = _container(chart.objects)
    flags = [flag for flag in container["command"][1:] if not flag.startswith("--config=")]
    flags += [f"--{what}-kubeconfig={account}" for what in ("authentication", "authorization")]
    port = free_port()
    flags += ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--config={file}"]
    process = Process("kube-scheduler", [str(program), *flags], account.with_name(f"kube-scheduler-{port}.log"))
    try:
        yield f"https://127.0.0.1:{port}{container['readinessProbe']['httpGet']['path']}"
    except BaseException as exc:
        exc.add_note(process.tail())
        raise
    finally:
        await asyncio.to_thread(process.stop, 30)


def _container(objects: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    found: list[list[KubernetesObject]] = [
        each["spec"]["template"]["spec"]["containers"] for each in objects if each["kind"] == "Deployment"
    ]
    return found[0]


def _service(chart: InstalledChart) -> str:
    [port] = chart.ports("scheduler")
    return f"http://127.0.0.1:{port}"


async def _until_ready(url: str) -> None:
    await eventually(lambda: asyncio.to_thread(_is_ready, url))


def _is_ready(url: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # kube-scheduler makes its own certificate
    try:
        with urlopen(url, timeout=5, context=context) as response:
            return bool(response.status == 200)
    except OSError:
        return False


async def _filtered(chart: InstalledChart, made: KubernetesObject) -> list[str]:
    """What the service leaves of two nodes; nothing if it does not answer."""
    arguments = {"Pod": made, "NodeNames": ["amd64", "arm64"]}
    with suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{_service(chart)}/scheduler/filter", data=json.dumps(arguments)) as answer,
        ):
            result = await answer.json(content_type=None)
            return result.get("NodeNames") or []
    return []


# --- every right is used


async def built_in_roles(api: ApiClient, objects: Sequence[KubernetesObject]) -> dict[str, KubernetesObject]:
    """The roles of Kubernetes to which the chart binds the account, by their names."""
    bound = [(each["roleRef"], each["metadata"].get("namespace", "")) for each in objects if "roleRef" in each]
    return {
        role["name"]: await api.get(role["kind"], role["name"], space, RBAC)
        for role, space in bound
        if not role["name"].startswith(OURS)
    }


def _without(objects: Sequence[KubernetesObject], name: str) -> list[KubernetesObject]:
    return [each for each in objects if each["metadata"]["name"] != name]


def needed(recorder: Recorder, roles: Mapping[str, Sequence[KubernetesObject]]) -> set[str]:
    """The names of the roles that gave a right which was used, and which no other of them gives."""
    used = used_rights(recorder, [each for group in roles.values() for each in group])
    found = set()
    for name, group in roles.items():
        others = [each for other in roles if other != name for each in roles[other]]
        if used & (rights_of(group) - rights_of(others)):
            found.add(name)
    return found


@pytest.mark.usefixtures("nodes", "claim")
async def test_the_second_scheduler_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, binaries: Binaries, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Kube-scheduler takes its lease and a part of each built-in role, the service all else."""
    values = {"modes": MODES["second-scheduler"], "config": GATED}
    async with (
        recording(control_plane, tmp_path) as of_service,
        recording(control_plane, tmp_path) as of_scheduler,
        installed(api, of_service.kubeconfig, registry, tmp_path, values) as chart,
        chart.replicas(1),
        second_scheduler(api, chart, of_scheduler.kubeconfig, tmp_path, binaries.kube_scheduler) as readiness,
    ):
        await chart.lead_to()
        await _until_ready(readiness)
        leader = [each for each in chart.objects if each["metadata"]["name"] == LEADER]
        own = _without(chart.objects, LEADER)
        roles = {name: [role] for name, role in (await built_in_roles(api, chart.objects)).items()} | {LEADER: leader}
        created = await api.create(pod("old", f"{registry.host}/team/old:1", spec=NAMED))
        await create_held(api, registry)
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "late"}}
        await api.create(pod("claims", f"{registry.host}/team/new:1", spec={**NAMED, "volumes": [volume]}))
        assert await api.wait_until_bound("old") == "amd64"
        await eventually(lambda: _filtered(chart, created), lambda found: found == ["amd64"])
        given = [each for group in roles.values() for each in group]
        others = {ONCE_A_POD_CHANGES}
        await _settle(lambda: rights_of(own) - used_rights(of_service, own) - others, set())
        await _settle(lambda: rights_of(leader) - used_rights(of_scheduler, given), set())
        await _settle(lambda: needed(of_scheduler, roles), set(roles))
        assert (of_service.refused, of_scheduler.refused) == (set(), set())
        assert used_rights(of_service, own) | others == rights_of(own)
        assert used_rights(of_scheduler, given) <= rights_of(given)


async def _settle(find: Callable[[], object], wanted: object) -> None:
    """Returns when that is found; after a while what is found instead is the failure."""
    with suppress(TimeoutError):
        await eventually(lambda: find() == wanted)
    assert find() == wanted
