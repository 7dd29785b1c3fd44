"""A cluster to try things in: `python -m testbed.playground` runs until Ctrl-C and prints commands to type.

It has a control plane with fake nodes of both architectures, the service and its webhook as the second scheduler's
files configure them, that scheduler and the default one, and a registry with a few images. No containers run on the
nodes. With `--nodes real` there are two nodes that run containers (`testbed/nodes`).

With `--service none` there is no service and the default scheduler alone, for a user who installs the chart with helm.
Controllers then run, and a stand-in for the kubelets runs what the chart installs (`process_kubelet.py`). The file
`build/cluster.env` has the variables that a shell needs.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from extender import __version__
from testbed.api_client import ApiClient, connect
from testbed.binaries import (
    HELM,
    KUBECTL,
    BinariesMissing,
    build,
    find_binaries,
    find_built,
    find_controller_manager,
)
from testbed.chart import HelmMissing, find_helm
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.debian_package import ProgramMissing
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.demo.story import fill_registry
from testbed.embedded_registry import EmbeddedRegistry
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.nodes.images import build_hello, build_hello_index, build_pause
from testbed.nodes.machine import NodesImpossible, require_machine
from testbed.nodes.node import Architecture, RealNode
from testbed.nodes.programs import find_hello, find_node_programs
from testbed.objects import KubernetesObject, fake_node
from testbed.process_kubelet import open_process_kubelet
from testbed.processes import ProcessFailed
from testbed.service_proxy import open_service_proxy
from testbed.shipped_files import (
    SECOND_SCHEDULER,
    Mode,
    scheduler_configuration,
    scheduler_flags,
    webhook_configuration,
)

GKE_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
CONTRADICTION = '{"spec": {"nodeSelector": {"kubernetes.io/arch": "arm64"}}}'
ARCHITECTURES: tuple[Architecture, ...] = ("amd64", "arm64")
OPTED_IN = {"metadata": {"labels": {"multiarch-extender.io/scheduler": SECOND_SCHEDULER}}}
WELCOME = """
{nodes}
There are no controllers, so create pods, not Deployments. Pods of the namespace default go to multiarch-scheduler.

  export KUBECONFIG={kubeconfig}

  kubectl get nodes -L kubernetes.io/arch -o wide
  kubectl run web    --image={registry}/shop/web:1.0      # multi-arch: on arm64, taints open to it
  kubectl run legacy --image={registry}/shop/legacy:1.0   # amd64-only
  kubectl run edge   --image={registry}/shop/edge:1.0     # arm64-only
  kubectl run lost   --image={registry}/shop/legacy:1.0 --overrides='{contradiction}'
  kubectl run typo   --image={registry}/shop/missing:1.0  # not in its registry: tried again
  kubectl get pods -o wide
  kubectl describe pod lost typo                          # why they wait
  kubectl get pod web -o yaml                             # the tolerations and the affinity added
{more}  curl -s {operations}/metrics | grep multiarch_requests_total.*answered

Images of real registries are placed as well, where those can be reached. The service's log: {log}
Ctrl-C ends it all.
"""

FAKE_NODES = "A cluster with 3 amd64 and 4 arm64 nodes, none of which runs anything: pods are placed, and wait there."
REAL_NODES = "A cluster of two nodes that run containers: amd64, and one that says arm64, where qemu runs programs."
ON_REAL_NODES = """\
  kubectl run blind  --image={registry}/shop/legacy:1.0 --annotations=multiarch-extender.io/mode=ignore \\
      --overrides='{contradiction}'
  kubectl logs blind                                      # what becomes of it without the service
"""

WELCOME_WITHOUT_SERVICE = """
A cluster with 3 amd64 and 4 arm64 nodes, and without multiarch-extender: install it as docs/quickstart.md says.
No kubelet and no containers run. The stand-in for them runs the service that you install as processes of this machine,
and leads the API server to it. Pods of other images are placed, and wait there.

In another terminal, in the same folder:

  source {environment}

  kubectl get nodes -L kubernetes.io/arch
  helm install multiarch-extender deploy/helm/multiarch-extender ...

The service's files and logs: {folder}
Ctrl-C ends it all.
"""

ENVIRONMENT = Path("build/cluster.env")
"""A file for the shell that talks to a cluster without a service, in the checkout."""

CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "job-controller",  # of hooks
)
"""What it takes for the chart's objects to be acted upon, and to be gone after `helm uninstall`."""

PARENT_SECONDS = 1.0
SOCKET_BYTES = 107  # of the path, on Linux
CHECKOUT = Path(__file__).resolve().parents[1]


class ClientPrograms(NamedTuple):
    """What a user of the cluster types."""

    helm: Path
    kubectl: Path


def nodes() -> list[KubernetesObject]:
    """Returns three nodes of each architecture, and an arm64 node with GKE's taint."""
    plain = [fake_node(f"{kind}-{index}", kind) for kind in ("amd64", "arm64") for index in (1, 2, 3)]
    return [*plain, fake_node("arm64-tainted", "arm64", taints=[GKE_TAINT])]


@asynccontextmanager
async def open_playground(cluster: LocalCluster, folder: Path, *, real: bool = False) -> AsyncIterator[str]:
    """Opens the playground in a cluster that is up; yields the text that tells its user what to type."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(cluster.kubeconfig))
        add_nodes = add_real_nodes if real else add_fake_nodes
        registry = await add_nodes(stack, api, cluster, folder)
        await api.patch("Namespace", "default", OPTED_IN)
        service = await install_service(api, cluster, folder, registry)
        stack.callback(service.terminate)
        await service.start()
        await api.apply(webhook_configuration(Mode.SECOND, service.admission_url, service.authority))
        for mode, url in ((Mode.SECOND, service.scheduler_url), (Mode.DEFAULT, "")):
            configuration = scheduler_configuration(mode, url)
            stack.enter_context(running_scheduler(cluster, configuration, f"kube-{mode}", scheduler_flags(mode)))
        yield WELCOME.format(
            nodes=REAL_NODES if real else FAKE_NODES,
            more=ON_REAL_NODES.format(registry=registry, contradiction=CONTRADICTION) if real else "",
            kubeconfig=cluster.kubeconfig,
            registry=registry,
            contradiction=CONTRADICTION,
            operations=service.operations_url,
            log=folder / f"{service.name}-0.log",
        )


@asynccontextmanager
async def open_without_service(
    cluster: LocalCluster, folder: Path, socket: Path, programs: ClientPrograms, manager: Path
) -> AsyncIterator[str]:
    """Opens a playground for a user who installs the chart; yields the text that tells them what to type.

    kube-apiserver must use the proxy at that socket.
    """
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(cluster.kubeconfig))
        registry = await add_fake_nodes(stack, api, cluster, folder)
        stack.enter_context(cluster.running_controllers(manager, *CONTROLLERS))
        stack.enter_context(running_scheduler(cluster, scheduler_configuration(Mode.DEFAULT, "")))
        kubelet = await stack.enter_async_context(open_process_kubelet(api, cluster.kubeconfig, folder))
        await stack.enter_async_context(open_service_proxy(socket, kubelet.locate))
        stack.enter_context(written_environment(cluster.kubeconfig, registry, programs))
        yield WELCOME_WITHOUT_SERVICE.format(environment=ENVIRONMENT, folder=folder)


def find_client_programs() -> ClientPrograms:
    """Returns programs that were built, else those on the PATH, else those that it builds. Raises BinariesMissing."""
    try:
        helm = find_helm()
    except HelmMissing:
        helm = build(HELM) / "helm"
    on_the_path = "" if find_built(KUBECTL).is_dir() else shutil.which("kubectl")
    return ClientPrograms(helm, Path(on_the_path) if on_the_path else build(KUBECTL) / "kubectl")


@contextmanager
def written_environment(kubeconfig: Path, registry: str, programs: ClientPrograms) -> Iterator[None]:
    """Writes the shell's file, which is gone after the block.

    It names the kubeconfig and the registry, and puts the programs and this checkout's commands onto the PATH.
    """
    folders = [Path(sys.prefix) / "bin", *(program.parent for program in programs)]
    path = os.pathsep.join(map(str, folders))
    file = CHECKOUT / ENVIRONMENT
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"export KUBECONFIG={shlex.quote(str(kubeconfig))}\n"
        f"export REGISTRY={registry}\n"
        f'export PATH={shlex.quote(path)}:"$PATH"\n'
    )
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


async def add_fake_nodes(stack: AsyncExitStack, api: ApiClient, _cluster: LocalCluster, _folder: Path) -> str:
    """Adds the fake nodes; returns the host of a registry whose images are never pulled."""
    registry = await stack.enter_async_context(EmbeddedRegistry())
    fill_registry(registry)
    registry.add_index("multiarch-extender", __version__, [f"linux/{each}" for each in ARCHITECTURES])
    await api.create_all(nodes())
    return registry.host


async def add_real_nodes(stack: AsyncExitStack, api: ApiClient, cluster: LocalCluster, folder: Path) -> str:
    """Runs a real node of each architecture; returns the host of a registry whose images run."""
    registry = stack.enter_context(DebianRegistry(find_docker_registry(), folder))
    hello = find_hello(ARCHITECTURES)
    registry.push("pause", "1", build_pause(ARCHITECTURES, hello))
    registry.push("shop/web", "1.0", build_hello_index(ARCHITECTURES, hello))
    registry.push("shop/legacy", "1.0", build_hello("amd64", hello))
    registry.push("shop/edge", "1.0", build_hello_index(["arm64"], hello))
    programs, pause = find_node_programs(), f"{registry.host}/pause:1"
    for name in ARCHITECTURES:
        node = RealNode(name, programs, api, cluster.kubeconfig, pause, architecture=name)
        await stack.enter_async_context(node)
    return registry.host


async def install_service(api: ApiClient, cluster: LocalCluster, folder: Path, registry: str) -> ExtenderProcess:
    """Makes the service with the second scheduler's settings and rights, not yet started."""
    account = await write_account(api, cluster.kubeconfig, folder / "service.kubeconfig", Mode.SECOND)
    settings = [
        f"registry.plain_http=['{registry}']",
        f"registry.allow=['*', '{registry}']",
        "cache.url='memory:'",
        "shutdown.grace_seconds=1",
    ]
    return make_extender_process("service", folder, account, *settings, mode=Mode.SECOND)


async def play(playground: AbstractAsyncContextManager[str], say: Callable[[str], None], parent: int) -> None:
    """Opens the playground and prints how to use it; returns at the first Ctrl-C or SIGTERM, or without that parent."""
    stopped = asyncio.Event()
    async with playground as welcome:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        say(welcome)
        while not stopped.is_set() and os.getppid() == parent:  # else nobody could end it by Ctrl-C any more
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PARENT_SECONDS)
        say("stopping")


def main() -> int:
    """Runs the playground; returns the exit code: 0 after Ctrl-C, 1 when it could not come up."""
    parser = argparse.ArgumentParser(description="Runs a cluster to try things in, until Ctrl-C.")
    parser.add_argument("--nodes", choices=["fake", "real"], default="fake", help="whether the nodes run containers")
    parser.add_argument(
        "--service", choices=["running", "none"], default="running", help="whether the service runs from the start"
    )
    arguments, parent = parser.parse_args(), os.getppid()
    real, empty = arguments.nodes == "real", arguments.service == "none"
    if real and empty:
        parser.error("--service none needs fake nodes, since the real ones have no image of the service")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during start-up it acts as Ctrl-C does
    try:
        if real:
            require_machine()
        with tempfile.TemporaryDirectory(prefix="multiarch-playground-") as name:
            run_without_service(Path(name), parent) if empty else run_with_service(Path(name), parent, real=real)
    except (BinariesMissing, ProcessFailed, ProgramMissing, NodesImpossible) as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say("stopped on the way up")
        return 1
    return 0


def run_with_service(folder: Path, parent: int, *, real: bool) -> None:
    """Runs the playground that has the service as a second scheduler, until Ctrl-C."""
    _say("starting etcd, kube-apiserver, the service and two kube-schedulers")
    with LocalCluster(find_binaries()) as cluster:
        asyncio.run(play(open_playground(cluster, folder, real=real), _say, parent))


def run_without_service(folder: Path, parent: int) -> None:
    """Runs the playground into which a user installs the chart, until Ctrl-C."""
    binaries, programs, manager = find_binaries(), find_client_programs(), find_controller_manager()
    socket = folder / "services.socket"
    if len(os.fsencode(socket)) > SOCKET_BYTES:
        raise ProcessFailed(f"{socket} is too long for the path of a Unix socket: set TMPDIR to a shorter folder")
    _say("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler")
    with LocalCluster(binaries, socket) as cluster:
        asyncio.run(play(open_without_service(cluster, folder, socket, programs, manager), _say, parent))


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
