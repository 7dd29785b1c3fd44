"""Holding pods is switched on and off again by helm: whoever held pods lets them go, each by what is known of it.

No kubelet runs here: the Deployment's pods are processes, which are replaced when the release changes.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, kept_to, pod
from testbed.processes import Process
from tests.e2e.examined_installation import ADMISSIONREGISTRATION
from tests.e2e.installed_chart import OURS, InstalledChart, balanced, recording, write_account
from tests.e2e.policies import GATE, dry_run, gates_of, until_free
from tests.e2e.test_helm_release import EACH_HELM, HelmRelease, helm, registry
from tests.e2e.test_helm_uninstall import held

__all__ = ["helm", "registry"]
pytestmark = [pytest.mark.e2e, EACH_HELM]

Values = Mapping[str, Any]
ON_SECONDS, OFF_SECONDS = 60.0, 30.0
PODS = 20
OFF: Values = {}
WAYS: Mapping[str, Values] = {
    "webhook": {"config": {"admission": {"unknown": "gate"}}},
    "policy": {"modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}},
    "both": {"modes": {"policy": {"enabled": True}}},
}

EACH_WAY = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "both" else pytest.mark.slow) for way in WAYS]
)
"""For what does not depend on the way: one of them, and the others where there is time."""


class PlayedRelease:
    """A release of the chart whose Deployment's pod is a process of this machine."""

    def __init__(
        self, helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, folder: Path
    ) -> None:
        self.helm = helm
        self._api, self._control_plane, self._registry, self._folder = api, control_plane, registry, folder
        self._running = AsyncExitStack()
        self._generation = 0
        self.ports: list[int] = []
        self.operations: list[int] = []

    async def roll(self, unknown: str = "", *, replicas: int = 1) -> list[Process]:
        """Has processes run as the release says, and ends those before once the new ones are ready.

        With `unknown` somebody has changed `admission.unknown` in the ConfigMap since, and no policy is put into force.
        """
        before, self._running = self._running, AsyncExitStack()
        self._generation += 1
        folder = self._folder / str(self._generation)
        folder.mkdir()
        objects = await self.helm.objects()
        for each in objects:
            if unknown and each["kind"] == "ConfigMap":
                settings = yaml.safe_load(each["data"]["config.yaml"])
                settings["admission"]["unknown"] = unknown
                settings["admission"]["gate"].pop("policy", None)
                each["data"]["config.yaml"] = yaml.safe_dump(settings)
        _, server = await self._running.enter_async_context(recording(self._control_plane))
        account = await write_account(self._api, self._control_plane, server, objects, folder)
        chart = InstalledChart(folder, objects, account, self._registry)
        processes = await self._running.enter_async_context(chart.replicas(replicas))
        self.ports[:] = [admission for _, admission, _ in chart.ports]
        self.operations[:] = [operations for _, _, operations in chart.ports]
        await before.aclose()
        return processes

    def kill(self, processes: Sequence[Process]) -> None:
        """Kills them as a machine does that is gone."""
        self.ports.clear()
        self.operations.clear()
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Ends the process."""
        self.ports.clear()
        await self._running.aclose()


@pytest.fixture
async def release(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> AsyncIterator[PlayedRelease]:
    """A release to install, on a cluster with a node of each architecture. Nothing of it is left."""
    if "mutatingadmissionpolicies" not in str(await api.request("GET", "/apis/admissionregistration.k8s.io/v1")):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    played = PlayedRelease(helm, api, control_plane, registry, tmp_path)
    yield played
    await played.end()
    with suppress(RuntimeError):
        await helm.run("uninstall", OURS, "--no-hooks")
    for each in await api.list("MutatingAdmissionPolicyBinding", api_version=ADMISSIONREGISTRATION):
        if each["spec"]["policyName"].startswith(OURS):  # its owner is gone, and no garbage collector runs here
            await api.delete("MutatingAdmissionPolicyBinding", each["metadata"]["name"], "", ADMISSIONREGISTRATION)
    await until_free(api)


@asynccontextmanager
async def reached(release: PlayedRelease, values: Values) -> AsyncIterator[Values]:
    """The values with an address at which the API server reaches the webhook's process."""
    async with balanced(release.ports) as port:
        yield {**values, "webhook": {"url": f"https://127.0.0.1:{port}"}}


async def until_holding(api: ApiClient, image: str) -> None:
    """Returns when a new pod of this unknown image is held."""
    await eventually(lambda: dry_run(api, pod("p", image)), lambda found: GATE in gates_of(found), seconds=ON_SECONDS)


async def hold_pods(api: ApiClient, registry: EmbeddedRegistry, known: str = "") -> None:
    """Creates pods of an image that is not pushed yet, and as many of one that never is; all of them are held.

    With `known` the former have that image beside the latter.
    """
    never = f"{registry.host}/team/never:1"
    await until_holding(api, never)
    kinds = ([f"{registry.host}/{known}", never] if known else [f"{registry.host}/team/late:1"], [never])
    for number in range(PODS):
        await api.create(pod(f"p-{number}", *kinds[number % 2]))
    assert len(await held(api)) == PODS


async def until_let_go(api: ApiClient, since: float) -> float:
    """How many seconds after that no pod was held any more."""
    while left := await held(api):
        assert time.monotonic() - since < OFF_SECONDS, f"held yet: {sorted(left)}"
        await asyncio.sleep(0.1)
    return time.monotonic() - since


async def assert_let_go_by_what_is_known(api: ApiClient) -> None:
    """The image that was pushed meanwhile keeps its pods to its architecture; new pods are held by nothing."""
    for number in range(PODS):
        found: KubernetesObject = await api.get("Pod", f"p-{number}")
        assert kept_to(found["spec"], "kubernetes.io/arch") == (["arm64"], [])[number % 2]
        assert "multiarch-extender.io/gated" not in found["metadata"].get("labels", {})
    await until_free(api)


@pytest.mark.parametrize(
    ("way", "off"),
    [
        *((way, "upgrade") for way in WAYS),
        ("both", "rollback"),
        *(pytest.param(way, "rollback", marks=pytest.mark.slow) for way in ("webhook", "policy")),
    ],
)
async def test_held_pods_are_let_go_when_holding_is_switched_off(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str, off: str
) -> None:
    """From nothing: installed, twenty pods held, and then an upgrade or a rollback to values that hold none.

    An upgrade finds in the cluster that pods were held. After a rollback `ungate` is the user's to run.
    """
    async with reached(release, WAYS[way]) as values, reached(release, OFF) as values_off:
        if off == "rollback":
            await release.helm.install(values_off)
            await release.helm.upgrade(values)
        else:
            await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        registry.add_manifest("team/late", "1", "linux/arm64")
        if off == "upgrade":
            await release.helm.upgrade(values_off)
        else:
            await release.helm.run("rollback", OURS, "1")
        began = time.monotonic()
        await release.roll()
        if off == "rollback":
            await let_go_by_command(release.helm)
        seconds = await until_let_go(api, began)
        print(f"{way}, {off}: {PODS} held pods let go {seconds:.1f} s after helm ended")
        if off == "upgrade":
            await assert_let_go_by_what_is_known(api)
        await until_free(api)


async def let_go_by_command(helm: HelmRelease) -> None:
    """`multiarch-extender ungate -A`, as the user of the cluster."""
    command = (sys.executable, "-m", "extender", "ungate", "-A", f"--kubeconfig={helm.kubeconfig}")
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0
