"""An upgrade of the chart from one version to another and back, under reviews: none is missed.

kube-apiserver, kube-scheduler and the Deployment's controller are real; the pods' containers are processes.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testbed.api_client import ApiClient, ApiError, connect
from testbed.binaries import Binaries
from testbed.chart import CHART
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.meanwhile import meanwhile
from testbed.objects import KubernetesObject, kept_to, pod
from testbed.playground import CONTROLLERS, add_fake_nodes
from testbed.process_kubelet import open_process_kubelet
from testbed.service_proxy import open_service_proxy
from testbed.shipped_files import Mode, scheduler_configuration
from tests.e2e.installed_chart import OURS, Values
from tests.e2e.releases import HelmRelease
from tests.e2e.world import Tally

pytestmark = pytest.mark.e2e

CALLERS = 4
PACE_SECONDS = 0.02
ROLLOUT_SECONDS = 120.0


class Cluster:
    """A cluster with the chart's release, whose pods run as processes."""

    def __init__(self, api: ApiClient, registry: str, helm: HelmRelease) -> None:
        self.api, self.helm, self._registry = api, helm, registry
        self.reviews = 0
        self.missed: list[str] = []

    def values(self, tag: str) -> Values:
        """Those of a chart whose image has that tag; `doctor` runs."""
        registry = self._registry
        return {
            "image": {"repository": f"{registry}/multiarch-extender", "tag": tag},
            "doctor": {"enabled": True},
            "config": {"registry": {"plain_http": [registry], "allow": ["*", registry]}},
        }

    async def wait_for_images(self, tag: str) -> None:
        """Returns when both replicas are of that tag and ready, and no other pod of the part is left."""

        def are_there(found: list[KubernetesObject]) -> bool:
            pods = [each for each in found if _is_replica(each)]
            return len(pods) == 2 and all(_is_ready(each) and _tag_of(each) == tag for each in pods)

        await eventually(lambda: self.api.list("Pod", OURS), are_there, seconds=ROLLOUT_SECONDS)

    async def review(self) -> None:
        """Has pods of an amd64-only image reviewed all the time, and counts those that come back as they were."""
        made = pod("p", f"{self._registry}/shop/legacy:1.0")
        while True:
            try:
                found = await self.api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", made)
                if kept_to(found["spec"], "kubernetes.io/arch") != ["amd64"]:
                    self.missed.append("unpatched")
            except ApiError as exc:
                self.missed.append(str(exc))
            self.reviews += 1
            await asyncio.sleep(PACE_SECONDS)


def _is_replica(found: KubernetesObject) -> bool:
    return bool(found["metadata"]["labels"].get("app.kubernetes.io/component") == "webhook")


def _is_ready(found: KubernetesObject) -> bool:
    conditions = found["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _tag_of(found: KubernetesObject) -> str:
    image: str = found["spec"]["containers"][0]["image"]
    return image.rpartition(":")[2]


@pytest.fixture
async def cluster(binaries: Binaries, controller_manager: Path, helm_program: Path) -> AsyncIterator[Cluster]:
    """A cluster of its own, whose API server reaches Services."""
    with tempfile.TemporaryDirectory() as name:  # tmp_path is too long for a socket
        socket = Path(name) / "services.socket"
        with LocalCluster(binaries, socket) as running:
            async with AsyncExitStack() as stack:
                api = await stack.enter_async_context(connect(running.kubeconfig))
                registry = await add_fake_nodes(stack, api, running, Path(name))
                stack.enter_context(running.running_controllers(controller_manager, *CONTROLLERS))
                stack.enter_context(running_scheduler(running, scheduler_configuration(Mode.DEFAULT, "")))
                kubelet = await stack.enter_async_context(open_process_kubelet(api, running.kubeconfig, Path(name)))
                await stack.enter_async_context(open_service_proxy(socket, kubelet.locate))
                yield Cluster(api, registry, HelmRelease(helm_program, running, Path(name)))


async def test_a_rolling_upgrade_and_the_way_back_miss_no_review(cluster: Cluster, tally: Tally) -> None:
    """Helm waits until doctor has seen the webhook at work; certificate and token stay as they are."""
    said = await cluster.helm.run("install", OURS, str(CHART), "--create-namespace", values=cluster.values("0.1.0"))
    assert said.count("TEST SUITE") <= 1
    await cluster.wait_for_images("0.1.0")
    started = time.monotonic()
    async with meanwhile(*(cluster.review() for _ in range(CALLERS))):
        await cluster.helm.upgrade(cluster.values("0.2.0"))
        await cluster.wait_for_images("0.2.0")
        await cluster.helm.run("rollback", OURS, "1")
        await cluster.wait_for_images("0.1.0")
    seconds = time.monotonic() - started
    tally.figures.append(
        f"rolling upgrade and rollback: {cluster.reviews} reviews in {seconds:.0f} s, {len(cluster.missed)} missed"
    )
    assert cluster.reviews > 100
    assert cluster.missed == []
