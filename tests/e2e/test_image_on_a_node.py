"""The chart as helm installs it, with the image that the Dockerfile makes, in pods of a real node.

The kubelet pulls the image from a real registry and runs it as the chart says: by which user, with which files and
rights, with what memory, probed through the pods' network. The API server calls the Service.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from extender import __version__
from testbed.api_client import ApiClient, connect
from testbed.binaries import Binaries
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LOOPBACK, LocalCluster
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.nodes.node import RealNode
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, kept_to, pod
from testbed.processes import PAUSE_SECONDS
from testbed.service_proxy import open_service_proxy
from tests.e2e.buildah import ImageBuilder
from tests.e2e.gates import GATE
from tests.e2e.installed_chart import OURS
from tests.e2e.policies import gates_of
from tests.e2e.running import RealImages
from tests.e2e.test_helm_release import HelmRelease

pytestmark = pytest.mark.e2e

CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "job-controller",  # of hooks
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",  # by which pods trust the API server
)
HOST = "10.0.0.1"  # of the node, for pods
SECONDS = 60.0
ANYBODY = 65532


class IntoTheNode:
    """Leads the API server to the node's kubelet, and to pods behind Services in place of kube-proxy."""

    def __init__(self, api: ApiClient, node: RealNode) -> None:
        self._api, self._node = api, node
        self._ports: dict[tuple[str, int], int] = {}

    async def locate(self, host: str, port: int) -> int | None:
        """Returns a port on loopback that leads to kubelet, or to a ready pod behind a Service; None without one."""
        if host == LOOPBACK:
            return await self._open(host, port)
        for service in await self._api.list("Service"):
            if service["spec"]["clusterIP"] == host and "selector" in service["spec"]:
                [target] = [each["targetPort"] for each in service["spec"]["ports"] if each["port"] == port]
                selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
                for found in await self._api.list("Pod", service["metadata"]["namespace"], labelSelector=selector):
                    if is_ready(found):
                        return await self._open(found["status"]["podIP"], port_of(found, target))
        return None

    async def _open(self, address: str, port: int) -> int:
        if (address, port) not in self._ports:
            self._ports[address, port] = await self._node.open_pod_port(address, port)
        return self._ports[address, port]


def is_ready(found: KubernetesObject) -> bool:
    """Whether the kubelet says that the pod is ready."""
    conditions = found["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def port_of(found: KubernetesObject, name: str) -> int:
    """The number of the container's port of that name."""
    [number] = [each["containerPort"] for each in found["spec"]["containers"][0]["ports"] if each["name"] == name]
    return int(number)


def users_of(cgroup: str) -> list[str]:
    """The user, the group and the effective capabilities of each service that runs below that cgroup."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if cgroup in (process / "cgroup").read_text() and b"\0serve\0" in (process / "cmdline").read_bytes():
                status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
                found.append(f"{status['Uid'].split()[1]}:{status['Gid'].split()[1]} {status['CapEff']}")
    return found


class Installation(NamedTuple):
    """A cluster with one real node, whose registry has the image, and a release that is not installed yet."""

    api: ApiClient
    node: RealNode
    release: HelmRelease
    registry: str
    """The registry's host as pods reach it; the node reaches it at its port on loopback."""
    digest: str
    """The image's."""

    async def pods(self) -> list[KubernetesObject]:
        """The pods of the service, without those of hooks."""
        found = await self.api.list("Pod", OURS, labelSelector="app.kubernetes.io/component=webhook")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]


@asynccontextmanager
async def opened(
    binaries: Binaries, programs: NodePrograms, manager: Path, helm: Path, builder: ImageBuilder, folder: Path
) -> AsyncIterator[Installation]:
    """Opens it; all of it ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="multiarch-") as short,  # the path of a Unix socket is
        DebianRegistry(find_docker_registry(), folder) as registry,
        LocalCluster(binaries, socket := Path(short) / "services", service_accounts=True) as cluster,
        cluster.running_controllers(manager, *CONTROLLERS),
        running_scheduler(cluster),
    ):
        images = RealImages(registry)
        digest = builder.push("first", f"{registry.host}/multiarch-extender:{__version__}")
        api_port, registry_port = cluster.port, int(registry.host.rpartition(":")[2])
        doors = {
            (LOOPBACK, api_port): api_port,  # for kubelet
            (HOST, 443): api_port,
            (LOOPBACK, registry_port): registry_port,  # for containerd
            (HOST, registry_port): registry_port,
        }
        async with connect(cluster.kubeconfig) as api:
            node = RealNode("amd64", programs, api, cluster.kubeconfig, images.pause, doors=doors)
            async with node, open_service_proxy(socket, IntoTheNode(api, node).locate):
                yield Installation(api, node, HelmRelease(helm, cluster, folder), f"{HOST}:{registry_port}", digest)


@pytest.mark.usefixtures("image")
async def test_helm_installs_the_image_and_a_kubelet_runs_it_as_the_chart_says(
    builder: ImageBuilder,
    binaries: Binaries,
    node_programs: NodePrograms,
    controller_manager: Path,
    helm_program: Path,
    tmp_path: Path,
) -> None:
    """The webhook and the policy: `helm install` waits for a review that is answered, and `helm test` finds all well.

    A pod that is deleted is replaced. `helm uninstall` lets a held pod go before it removes what would have done so.
    """
    async with opened(binaries, node_programs, controller_manager, helm_program, builder, tmp_path) as there:
        host = there.registry
        values = {
            "modes": {"policy": {"enabled": True}},
            "image": {"registry": f"{LOOPBACK}:{host.rpartition(':')[2]}"},
            "config": {"registry": {"plain_http": [host], "allow": [host]}},
        }
        started = time.monotonic()
        await there.release.install(values)
        seconds = time.monotonic() - started
        made = await there.api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("p", f"{host}/amd:1"))
        assert kept_to(made["spec"], "kubernetes.io/arch") == ["amd64"]
        printed = await there.release.run("test", OURS, "--logs")
        assert "Phase:          Succeeded" in printed, printed
        assert "fine probe webhook" in printed, printed
        first, second = await there.pods()
        for each in (first, second):
            [container] = each["status"]["containerStatuses"]
            assert (container["ready"], container["restartCount"]) == (True, 0)
            assert container["imageID"].endswith(there.digest)
        assert users_of(there.node.cgroup.name) == [f"{ANYBODY}:{ANYBODY} 0000000000000000"] * 2
        print(f"the image on a real node: reviews are answered {seconds:.1f} s after `helm install`")
        await there.api.delete("Pod", first["metadata"]["name"], OURS)
        async with asyncio.timeout(SECONDS):
            while len(ready := list(filter(is_ready, await there.pods()))) < 2:
                await asyncio.sleep(PAUSE_SECONDS)
        assert first["metadata"]["name"] not in {each["metadata"]["name"] for each in ready}
        await there.api.create(pod("held", f"{host}/pushed-later:1"))
        assert gates_of(await there.api.get("Pod", "held", "default")) == [{"name": GATE}]
        await there.release.run("uninstall", OURS, "--wait")
        assert gates_of(await there.api.get("Pod", "held", "default")) == []
        assert await there.pods() == []
