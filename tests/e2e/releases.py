"""Releases of the chart, by helm itself: their pods are processes of this machine, since no kubelet runs here.

The Deployment's pods are replaced when the release changes, as `roll` does it, and so is the container of the Job that
Helm runs before it uninstalls.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import cache_folder
from testbed.chart import CHART, objects_of
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.meanwhile import meanwhile
from testbed.objects import KubernetesObject, fake_node, kept_to, pod
from testbed.process_kubelet import ProcessPod
from tests.e2e.installed_chart import (
    OURS,
    InstalledChart,
    Values,
    balanced,
    finalizing_namespaces,
)
from tests.e2e.policies import GATE, dry_run, gates_of, has_mutating_policies, until_free
from tests.e2e.rights import Recorder, recording

UNINSTALL = f"{OURS}-uninstall"
PROGRAMS: list[Path | None] = [*sorted((cache_folder() / "charts").glob("helm-v*/helm"))] or [None]
FROM_OUTSIDE: Values = {
    "image": {"repository": "registry.example.org/multiarch-extender"},
    "doctor": {"enabled": False},  # no kubelet here runs the image
}
PODS = 10
WAYS: Mapping[str, Values] = {
    "webhook": {"config": {"admission": {"unknown": "gate"}}},
    "policy": {"modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}},
    "both": {"modes": {"policy": {"enabled": True}}},
}
"""Values by which pods are held."""
_HELMS = [
    pytest.param(each, marks=() if each is PROGRAMS[-1] else pytest.mark.slow, id=each.parent.name if each else "none")
    for each in PROGRAMS
]
# Stories that take half a minute each: those with older ones are marked slow.
EACH_HELM = pytest.mark.parametrize("helm", _HELMS, indirect=True)
NEWEST = pytest.mark.parametrize("helm", _HELMS[-1:], indirect=True)


class HelmRelease:
    """One release of the chart, by one program."""

    def __init__(self, program: Path, cluster: LocalCluster, folder: Path) -> None:
        self._program, self._cluster, self._folder = program, cluster, folder

    @property
    def kubeconfig(self) -> Path:
        return self._cluster.kubeconfig

    async def run(self, *arguments: str, values: Values | None = None, only: Values | None = None) -> str:
        """What helm prints, with `values` beside the usual ones, or with those of `only` alone.

        Raises RuntimeError with what it says if it fails.
        """
        file = self._folder / "values.json"
        file.write_bytes(msgspec.json.encode({**FROM_OUTSIDE, **(values or {})} if only is None else only))
        given = [f"--values={file}"] if arguments[0] in ("install", "upgrade") else []
        command = [
            str(self._program),
            *arguments,
            *given,
            f"--kubeconfig={self._cluster.kubeconfig}",
            f"--namespace={OURS}",
        ]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            raise RuntimeError(done.stderr + done.stdout)  # the logs of `helm test` are in the latter
        return done.stdout

    async def install(self, values: Mapping[str, Any]) -> None:
        await self.run("install", OURS, str(CHART), "--create-namespace", values=values)

    async def upgrade(self, values: Mapping[str, Any]) -> None:
        await self.run("upgrade", OURS, str(CHART), values=values)

    async def objects(self) -> list[KubernetesObject]:
        return objects_of(await self.run("get", "manifest", OURS))


@asynccontextmanager
async def open_helm_release(
    program: Path, api: ApiClient, cluster: LocalCluster, folder: Path
) -> AsyncIterator[HelmRelease]:
    """A release that is not there yet; what is left of it is gone afterwards."""
    release = HelmRelease(program, cluster, folder)
    with suppress(ApiError):  # a service that ran here without the chart has made it
        await api.delete("Lease", "multiarch-extender-held-pods", OURS, "coordination.k8s.io/v1")
    async with finalizing_namespaces(api):
        yield release
        with suppress(RuntimeError):
            await release.run("uninstall", OURS)


async def left_of(api: ApiClient, objects: list[KubernetesObject]) -> list[str]:
    left = []
    for each in objects:
        metadata = each["metadata"]
        with suppress(ApiError):
            await api.get(each["kind"], metadata["name"], metadata.get("namespace", ""), each["apiVersion"])
            left.append(f"{each['kind']} {metadata['name']}")
    return left


async def names_of(api: ApiClient) -> set[str]:
    paths = (
        f"/api/v1/namespaces/{OURS}/secrets",
        f"/api/v1/namespaces/{OURS}/configmaps",
        f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases",
    )
    return {each["metadata"]["name"] for path in paths for each in (await api.request("GET", path))["items"]}


class PlayedRelease:
    """A release of the chart whose Deployment's pods are processes of this machine."""

    def __init__(
        self, helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, folder: Path
    ) -> None:
        self.helm = helm
        self._api, self._admin, self._registry, self._folder = api, control_plane.kubeconfig, registry, folder
        self._running = AsyncExitStack()
        self._generation = 0
        self.ports: list[int] = []
        self.operations: list[int] = []

    async def roll(self, *settings: str, replicas: int = 1) -> list[ProcessPod]:
        """Has processes run as the release says, and ends those before once the new ones are ready.

        With `settings` (`path=value`) somebody has changed these in the ConfigMap since.
        """
        before, self._running = self._running, AsyncExitStack()
        self._generation += 1
        folder = self._folder / str(self._generation)
        chart = InstalledChart(self._api, self._admin, self._registry, folder, await self.helm.objects())
        pods = await self._running.enter_async_context(chart.replicas(replicas, *settings))
        self.ports[:], self.operations[:] = chart.ports("webhook"), chart.ports("operations")
        await before.aclose()
        return pods

    async def kill(self, pods: Sequence[ProcessPod]) -> None:
        """Kills them as a machine does that is gone."""
        self.ports.clear()
        self.operations.clear()
        for each in pods:
            await each.kill()

    async def end(self) -> None:
        self.ports.clear()
        await self._running.aclose()


@asynccontextmanager
async def open_played_release(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, folder: Path
) -> AsyncIterator[PlayedRelease]:
    """A release to install, on a cluster with a node of each architecture. Nothing of it is left."""
    if not await has_mutating_policies(api):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    played = PlayedRelease(helm, api, control_plane, registry, folder)
    yield played
    await played.end()
    with suppress(RuntimeError):
        await helm.run("uninstall", OURS, "--no-hooks")
    await until_free(api)


@asynccontextmanager
async def reached(release: PlayedRelease, values: Values) -> AsyncIterator[Values]:
    """The values with an address at which the API server reaches the webhook's process."""
    async with balanced(release.ports) as port:
        yield {**values, "webhook": {"url": f"https://127.0.0.1:{port}"}}


async def until_holding(api: ApiClient, image: str) -> None:
    await eventually(lambda: dry_run(api, pod("p", image)), lambda found: GATE in gates_of(found))


async def hold_pods(api: ApiClient, registry: EmbeddedRegistry) -> None:
    """Creates pods of an image for arm64 beside one that is never pushed, and pods of the latter; all are held."""
    await api.delete_all("Pod", "default")
    registry.add_manifest("team/arm", "1", "linux/arm64")
    never = f"{registry.host}/team/never:1"
    await until_holding(api, never)
    for number in range(PODS):
        await api.create(pod(f"p-{number}", *([f"{registry.host}/team/arm:1", never], [never])[number % 2]))
    assert len(await held(api)) == PODS


async def until_ungated(api: ApiClient) -> None:
    await eventually(lambda: held(api), lambda found: not found)


async def assert_kept_where_known(api: ApiClient) -> None:
    """Each pod is kept to what its images run on, if that is known, and bears no label of ours."""
    for number in range(PODS):
        found = await api.get("Pod", f"p-{number}")
        assert kept_to(found["spec"], "kubernetes.io/arch") == (["arm64"], [])[number % 2]
        assert "multiarch-extender.io/gated" not in found["metadata"].get("labels", {})


async def held(api: ApiClient) -> set[str]:
    """The names of the pods that our gate holds."""
    return {each["metadata"]["name"] for each in await api.list("Pod", "default") if GATE in gates_of(each)}


@asynccontextmanager
async def uninstalling(api: ApiClient, control_plane: LocalCluster, folder: Path) -> AsyncIterator[Recorder]:
    """Runs the Job's container when it is there, in `folder`; what it asks of the API server is recorded."""
    labelled = {"labelSelector": "app.kubernetes.io/component=uninstall"}

    async def run(admin: Path) -> None:
        [found, *_] = await eventually(lambda: api.list("Pod", OURS, **labelled))
        await ProcessPod(api, found, folder / "job").run(admin)

    async with recording(control_plane, folder) as recorder, meanwhile(run(recorder.kubeconfig)):
        yield recorder
