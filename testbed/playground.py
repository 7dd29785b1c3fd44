"""A cluster to try things in: `python -m testbed.playground` runs until Ctrl-C and prints commands to type.

It has a control plane with fake nodes of both architectures, the service and its webhook as the second scheduler's
files configure them, that scheduler and the default one, and a registry with a few images. No containers run on the
nodes. With `--nodes real` there are two nodes that run containers (`testbed/nodes`).
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from extender.demo.registry import EmbeddedRegistry
from extender.demo.story import fill_registry
from testbed.api_client import ApiClient, connect
from testbed.binaries import BinariesMissing, find_binaries
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.debian_package import ProgramMissing
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.nodes.images import build_hello, build_hello_index, build_pause
from testbed.nodes.machine import NodesImpossible, require_machine
from testbed.nodes.node import Architecture, RealNode
from testbed.nodes.programs import find_hello, find_node_programs
from testbed.objects import KubernetesObject, fake_node
from testbed.processes import ProcessFailed
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
A cluster with 3 amd64 and 4 arm64 nodes, none of which runs anything: pods are placed, and wait there. There are no
controllers either, so create pods, not Deployments. Pods of the namespace default go to multiarch-scheduler.

  export KUBECONFIG={kubeconfig}

  kubectl get nodes -L kubernetes.io/arch -o wide
  kubectl run web    --image={registry}/shop/web:1.0      # multi-arch: on arm64, the tainted pool open to it
  kubectl run legacy --image={registry}/shop/legacy:1.0   # amd64-only
  kubectl run edge   --image={registry}/shop/edge:1.0     # arm64-only
  kubectl run lost   --image={registry}/shop/legacy:1.0 --overrides='{contradiction}'
  kubectl run typo   --image={registry}/shop/missing:1.0  # not in its registry: tried again
  kubectl get pods -o wide
  kubectl describe pod lost typo                          # why they wait
  kubectl get pod web -o yaml                             # the tolerations and the affinity added
  curl -s {operations}/metrics | grep multiarch_requests_total.*answered

Images of real registries work as well, where those can be reached. The service's log: {log}
Ctrl-C ends it all.
"""

WELCOME_TO_REAL_NODES = """
A cluster of two nodes that run containers: amd64, and one that says arm64, where qemu runs the programs for arm64.
There are no controllers, so create pods, not Deployments. Pods of the namespace default go to multiarch-scheduler.

  export KUBECONFIG={kubeconfig}

  kubectl get nodes -L kubernetes.io/arch -o wide
  kubectl run web    --image={registry}/shop/web:1.0      # multi-arch: on arm64
  kubectl run legacy --image={registry}/shop/legacy:1.0   # amd64-only
  kubectl run edge   --image={registry}/shop/edge:1.0     # arm64-only
  kubectl run lost   --image={registry}/shop/legacy:1.0 --overrides='{contradiction}'
  kubectl run blind  --image={registry}/shop/legacy:1.0 --annotations=multiarch-extender.io/mode=ignore \\
      --overrides='{contradiction}'
  kubectl get pods -o wide
  kubectl describe pod lost                               # why it waits
  kubectl logs blind                                      # what becomes of it without the service
  curl -s {operations}/metrics | grep multiarch_requests_total.*answered

Images of real registries are placed as well, where those can be reached. The service's log: {log}
Ctrl-C ends it all.
"""


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
        yield (WELCOME_TO_REAL_NODES if real else WELCOME).format(
            kubeconfig=cluster.kubeconfig,
            registry=registry,
            contradiction=CONTRADICTION,
            operations=service.operations_url,
            log=folder / f"{service.name}-0.log",
        )


async def add_fake_nodes(stack: AsyncExitStack, api: ApiClient, _cluster: LocalCluster, _folder: Path) -> str:
    """Adds the fake nodes; returns the host of a registry whose images are never pulled."""
    registry = await stack.enter_async_context(EmbeddedRegistry())
    fill_registry(registry)
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
        "shutdown.linger_seconds=0.1",
    ]
    return make_extender_process("service", folder, account, *settings, mode=Mode.SECOND)


async def play(cluster: LocalCluster, folder: Path, say: Callable[[str], None], *, real: bool) -> None:
    """Opens the playground, prints how to use it, and returns at the first Ctrl-C or SIGTERM."""
    stopped = asyncio.Event()
    async with open_playground(cluster, folder, real=real) as welcome:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        say(welcome)
        await stopped.wait()
        say("stopping")


def main() -> int:
    """Runs the playground; returns the exit code: 0 after Ctrl-C, 1 when it could not come up."""
    parser = argparse.ArgumentParser(description="Runs a cluster to try things in, until Ctrl-C.")
    parser.add_argument("--nodes", choices=["fake", "real"], default="fake", help="whether the nodes run containers")
    real = parser.parse_args().nodes == "real"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during start-up it acts as Ctrl-C does
    try:
        if real:
            require_machine()
        _say("starting etcd, kube-apiserver, the service and two kube-schedulers")
        with LocalCluster(find_binaries()) as cluster, tempfile.TemporaryDirectory() as folder:
            asyncio.run(play(cluster, Path(folder), _say, real=real))
    except (BinariesMissing, ProcessFailed, ProgramMissing, NodesImpossible) as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say("stopped on the way up")
        return 1
    return 0


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
