"""The chart as helm installs it, with the image that the Dockerfile makes, in pods of a real node.

The kubelet pulls the image from a real registry and runs it as the chart says: by which user, with which files and
rights, with what memory, probed through the pods' network. The API server calls the Service.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from extender import __version__
from testbed.api_client import ApiClient, ApiError, connect
from testbed.binaries import Binaries
from testbed.chart import CHART
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LOOPBACK, LocalCluster
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.eventually import eventually
from testbed.image_builder import Image, ImageBuilder
from testbed.nodes.images import build_image
from testbed.nodes.node import RealNode
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, kept_to, pod
from testbed.service_proxy import open_service_proxy
from tests.e2e.installed_chart import OURS
from tests.e2e.policies import GATE, dry_run, gates_of
from tests.e2e.releases import HelmRelease
from tests.e2e.running import RealImages
from tests.e2e.world import refusal_of

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
    conditions = found["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def port_of(found: KubernetesObject, name: str) -> int:
    containers = [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]
    [number] = [port["containerPort"] for each in containers for port in each["ports"] if port["name"] == name]
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
    images: RealImages
    """The node reaches their registry at its port on loopback."""
    digest: str
    """Our image's."""

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


async def awaited(api: ApiClient, name: str, is_so: Callable[[KubernetesObject], bool]) -> KubernetesObject:
    return await api.wait_for("Pod", is_so, timeout_seconds=SECONDS, fieldSelector=f"metadata.name={name}")


@pytest.fixture
async def there(
    image: Image,
    builder: ImageBuilder,
    binaries: Binaries,
    node_programs: NodePrograms,
    controller_manager: Path,
    helm_program: Path,
    tmp_path: Path,
) -> AsyncIterator[Installation]:
    with (
        tempfile.TemporaryDirectory(prefix="multiarch-") as short,  # the path of a Unix socket is
        DebianRegistry(find_docker_registry(), tmp_path) as registry,
        LocalCluster(binaries, socket := Path(short) / "services", service_accounts=True) as cluster,
        cluster.running_controllers(controller_manager, *CONTROLLERS),
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
            node = RealNode("amd64", node_programs, api, cluster.kubeconfig, images.pause, doors=doors)
            async with node, open_service_proxy(socket, IntoTheNode(api, node).locate):
                yield Installation(api, node, HelmRelease(helm_program, cluster, tmp_path), images, digest)


async def test_helm_installs_the_image_and_a_kubelet_runs_it_as_the_chart_says(there: Installation) -> None:
    """The webhook and the policy: `helm install` waits for a review that is answered, and `helm test` finds all well.

    A pod that is deleted is replaced. `helm uninstall` lets a held pod go before it removes what would have done so.
    """
    started = time.monotonic()
    await there.install({"policy": {"enabled": True}})
    seconds = time.monotonic() - started
    amd = there.image("amd")
    # On a busy machine the image is not known in the time that a review has.
    await eventually(
        lambda: dry_run(there.api, pod("p", amd)),
        lambda found: kept_to(found["spec"], "kubernetes.io/arch") == ["amd64"],
    )
    printed = await there.release.run("test", OURS, "--logs")
    assert "Phase:          Succeeded" in printed, printed
    assert "ok probe webhook" in printed, printed
    first, second = await there.pods("webhook")
    for each in (first, second):
        [container] = each["status"]["containerStatuses"]
        assert (container["ready"], container["restartCount"]) == (True, 0), await last_end(there.api, each)
        assert container["imageID"].endswith(there.digest)
    assert users_of(there.node.cgroup.name) == [f"{ANYBODY}:{ANYBODY} 0000000000000000"] * 2
    print(f"the image on a real node: reviews are answered {seconds:.1f} s after `helm install`")
    await there.api.delete("Pod", first["metadata"]["name"], OURS)
    pods = await eventually(lambda: there.pods("webhook"), lambda found: [*map(is_ready, found)] == [True, True])
    assert first["metadata"]["name"] not in {each["metadata"]["name"] for each in pods}
    await eventually(lambda: create_held(there))  # the replica that let pods go may be the one that was deleted
    await there.release.run("uninstall", OURS, "--wait")
    assert gates_of(await there.api.get("Pod", "held", "default")) == []
    assert await there.pods("webhook") == []


async def last_end(api: ApiClient, found: KubernetesObject) -> str:
    """How the container ended before it was started again, and what it said."""
    [container] = found["status"]["containerStatuses"]
    metadata = found["metadata"]
    with suppress(ApiError):
        return f"{container['lastState']} {await api.log(metadata['name'], metadata['namespace'], previous='true')}"
    return str(container)


async def create_held(there: Installation) -> bool:
    """Whether a new pod is held, of an image that is not there; one that is not is deleted."""
    made = await there.api.create(pod("held", there.image("pushed-later")))
    if gates_of(made) != [GATE]:
        await there.api.delete("Pod", "held", "default")
    return gates_of(made) == [GATE]


async def test_the_second_scheduler_schedules_from_its_pod(there: Installation, binaries: Binaries) -> None:
    """kube-scheduler and the service in one pod, of which the service is the sidecar; its verbs are on loopback."""
    files = {"/usr/local/bin/kube-scheduler": binaries.kube_scheduler.read_bytes()}
    version = (await there.api.request("GET", "/version"))["gitVersion"]
    there.images.registry.push("kube-scheduler", version, build_image("linux/amd64", files, entrypoint=["none"]))
    image = f"{there.images.registry.host}/kube-scheduler:{version}"
    modes = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True, "image": image}}
    await there.install(modes, replicas=1)
    [running] = await there.pods("second-scheduler")
    assert is_ready(running)
    chosen = {"schedulerName": "multiarch-scheduler"}
    for kind in ("amd", "arm"):
        await there.api.create(pod(kind, there.image(kind), spec=chosen))
    placed = await awaited(there.api, "amd", lambda found: "nodeName" in found["spec"])
    assert placed["spec"]["nodeName"] == there.node.name
    refused = await awaited(there.api, "arm", lambda found: bool(refusal_of(found)))
    assert there.image("arm") in refusal_of(refused)["message"]
    [running] = await there.pods("second-scheduler")
    found = [*running["status"]["initContainerStatuses"], *running["status"]["containerStatuses"]]
    assert [(each["name"], each["ready"], each["restartCount"]) for each in found] == [
        ("multiarch-extender", True, 0),
        ("kube-scheduler", True, 0),
    ]
