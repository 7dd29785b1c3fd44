"""A cluster whose one node is real, for the chart as helm installs it: pods run in containers, probed and reached.

The API server calls Services, in place of kube-proxy.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testbed.api_client import ApiClient, connect
from testbed.binaries import Binaries
from testbed.chart import CHART
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LOOPBACK, LocalCluster
from testbed.debian_registry import DebianRegistry
from testbed.nodes.node import RealNode
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject
from testbed.service_proxy import open_service_proxy
from tests.e2e.installed_chart import OURS
from tests.e2e.releases import HelmRelease
from tests.e2e.running import RealImages

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
    conditions = found["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def port_of(found: KubernetesObject, name: str) -> int:
    containers = [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]
    [number] = [port["containerPort"] for each in containers for port in each["ports"] if port["name"] == name]
    return int(number)


class Installation(NamedTuple):
    """A cluster with one real node, a registry, and a release that is not installed yet."""

    api: ApiClient
    node: RealNode
    release: HelmRelease
    images: RealImages
    """The node reaches their registry at its port on loopback."""
    digest: str = ""
    """Our image's there, by whoever has pushed it."""

    @property
    def host(self) -> str:
        return f"{HOST}:{self.images.registry.host.rpartition(':')[2]}"

    def image(self, name: str) -> str:
        """An image of the registry as the service looks it up."""
        return f"{self.host}/{name}:1"

    async def install(self, modes: Mapping[str, Any], *, replicas: int = 2) -> None:
        """Has helm install the chart with these modes; it waits for the hooks of the chart."""
        values = {
            "modes": modes,
            "replicas": replicas,
            "doctor": {"enabled": True},
            "image": {"repository": f"{self.images.registry.host}/multiarch-extender"},
            "config": {"registry": {"plain_http": [self.host], "allow": [self.host]}},
        }
        await self.release.run("install", OURS, str(CHART), "--create-namespace", "--wait", values=values)

    async def pods(self, component: str) -> list[KubernetesObject]:
        found = await self.api.list("Pod", OURS, labelSelector=f"app.kubernetes.io/component={component}")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]


class InstallationPrograms(NamedTuple):
    """What it is made of."""

    binaries: Binaries
    node: NodePrograms
    controller_manager: Path
    helm: Path


@asynccontextmanager
async def open_node_installation(
    programs: InstallationPrograms, registry: DebianRegistry, folder: Path
) -> AsyncIterator[Installation]:
    """Opens it beside that registry, which the node reaches at its port on loopback and pods at HOST."""
    with (
        tempfile.TemporaryDirectory(prefix="multiarch-") as short,  # the path of a Unix socket is
        LocalCluster(programs.binaries, socket := Path(short) / "services", service_accounts=True) as cluster,
        cluster.running_controllers(programs.controller_manager, *CONTROLLERS),
        running_scheduler(cluster),
    ):
        images = RealImages(registry)
        api_port, registry_port = cluster.port, int(registry.host.rpartition(":")[2])
        doors = {
            (LOOPBACK, api_port): api_port,  # for kubelet
            (HOST, 443): api_port,
            (LOOPBACK, registry_port): registry_port,  # for containerd
            (HOST, registry_port): registry_port,
        }
        async with connect(cluster.kubeconfig) as api:
            node = RealNode("amd64", programs.node, api, cluster.kubeconfig, images.pause, doors=doors)
            async with node, open_service_proxy(socket, IntoTheNode(api, node).locate):
                yield Installation(api, node, HelmRelease(programs.helm, cluster, folder), images)
