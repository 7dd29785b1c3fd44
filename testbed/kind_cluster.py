"""A cluster in containers: kind runs real kubelets of this machine's architecture, kwok simulates nodes of the other.

Needs a container engine (docker), kind, kubectl, and a network that reaches their images and kwok's release. Needs
Linux, since the schedulers in the node's container must reach this process. Beside the fake nodes there is one real
worker.

Each scheduler is a static pod, made from the one that kubeadm wrote, which is removed once the cluster is up. So the
cluster's configuration needs no kubeadm patch, whose form depends on the version (a map of extraArgs in kubeadm
v1beta3, a list in v1beta4), and a scheduler's flags can be chosen when it is started.
"""

import copy
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from testbed.cluster_provider import OPEN_PATHS, complete_scheduler_configuration
from testbed.objects import KubernetesObject
from testbed.processes import Process, ProcessFailed

KWOK = "https://github.com/kubernetes-sigs/kwok/releases/download/v0.8.0"
CONFIGURATIONS = "/etc/kubernetes/multiarch-extender"  # in the node, where our folder is mounted
KUBECONFIG = "/etc/kubernetes/scheduler.conf"  # system:kube-scheduler's, by kubeadm
ADMIN = "/etc/kubernetes/admin.conf"  # the administrator's, in the node
MANIFESTS = "/etc/kubernetes/manifests"  # what the kubelet runs as static pods
FIRST_PORT = 10300  # the schedulers' own endpoints take the ports after it, one each, on the node's loopback
WAIT = "--timeout=180s"


def cluster_configuration(configurations: Path) -> KubernetesObject:
    """Returns kind's configuration: a worker, and a control plane that mounts the scheduler configurations."""
    mount = {"hostPath": str(configurations), "containerPath": CONFIGURATIONS, "readOnly": True}
    return {
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kind": "Cluster",
        "nodes": [{"role": "control-plane", "extraMounts": [mount]}, {"role": "worker"}],
    }


def scheduler_pod(kubeadm: KubernetesObject, name: str, port: int, arguments: Sequence[str]) -> KubernetesObject:
    """Returns a static pod that runs kubeadm's kube-scheduler image with our configuration, flags and port.

    kubeadm's flags are left out, since its `--leader-elect=true` would override the configuration.
    """
    pod = copy.deepcopy(kubeadm)
    pod["metadata"] = {"name": name, "namespace": "kube-system", "labels": {"component": name}}
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    spec["volumes"].append({"name": "configurations", "hostPath": {"path": CONFIGURATIONS, "type": "Directory"}})
    container["volumeMounts"].append({"name": "configurations", "mountPath": CONFIGURATIONS, "readOnly": True})
    container["name"] = name
    container["command"] = [
        "kube-scheduler",
        f"--config={CONFIGURATIONS}/{name}.yaml",
        f"--authentication-kubeconfig={KUBECONFIG}",
        f"--authorization-kubeconfig={KUBECONFIG}",
        OPEN_PATHS,
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        *arguments,
    ]
    for key in ("ports", "livenessProbe", "startupProbe"):
        container.pop(key, None)
    ready = {"host": "127.0.0.1", "path": "/readyz", "port": port, "scheme": "HTTPS"}
    container["readinessProbe"] = {"httpGet": ready, "periodSeconds": 1}
    return pod


class KindCluster:
    """A `ClusterProvider` made of containers. `image` is a kindest/node image, or kind's default if empty."""

    def __init__(self, name: str = "multiarch-extender", image: str = "") -> None:
        self._name, self._image = name, image
        self._running = ExitStack()
        self._ports: dict[str, int] = {}  # of each scheduler that was started

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig. The user's own kubeconfig is not touched."""
        return self._folder / "admin.kubeconfig"

    @property
    def host_address(self) -> str:
        """The gateway of kind's network, which is this machine's address as seen from the node's container."""
        networks: list[KubernetesObject] = msgspec.json.decode(_run("docker", "network", "inspect", "kind"))
        gateways = [str(each.get("Gateway", "")) for each in networks[0]["IPAM"]["Config"]]
        return next(gateway for gateway in gateways if "." in gateway)

    @property
    def processes(self) -> Sequence[Process]:
        """Empty, since the programs run in the containers."""
        return ()

    def up(self) -> None:
        """Creates the cluster, installs kwok, removes kubeadm's scheduler. Raises ProcessFailed."""
        with ExitStack() as running:
            self._ports.clear()
            self._folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="multiarch-kind-")))
            self._configurations = self._folder / "configurations"
            self._configurations.mkdir()
            running.callback(_run, "kind", "delete", "cluster", "--name", self._name, *self._to_kubeconfig)
            self._create()
            self._install_kwok()
            self._take_over_scheduling()
            self._running = running.pop_all()

    def down(self) -> None:
        """Deletes the cluster's containers and our folder."""
        self._running.close()

    def start_scheduler(
        self, configuration: Mapping[str, Any] | str = "", name: str = "kube-scheduler", arguments: Sequence[str] = ()
    ) -> None:
        """See ClusterProvider."""
        complete = complete_scheduler_configuration(configuration, KUBECONFIG)
        (self._configurations / f"{name}.yaml").write_bytes(msgspec.yaml.encode(complete))
        port = self._ports.setdefault(name, FIRST_PORT + len(self._ports) + 1)
        pod = scheduler_pod(self._kubeadm, name, port, arguments)
        self._in_node(f"cat > {MANIFESTS}/{name}.yaml", msgspec.yaml.encode(pod).decode())
        self._kubectl("-n", "kube-system", "wait", "--for=create", WAIT, f"pod/{name}-{self._node}")
        self._kubectl("-n", "kube-system", "wait", "--for=condition=Ready", WAIT, f"pod/{name}-{self._node}")

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """Removes its manifest; returns when the kubelet has ended it."""
        self._in_node(f"rm {MANIFESTS}/{name}.yaml")
        self._kubectl("-n", "kube-system", "wait", "--for=delete", WAIT, f"pod/{name}-{self._node}")

    def scheduler_metrics(self, name: str = "kube-scheduler") -> str:
        """Returns that scheduler's /metrics.

        The node's own kubectl fetches it, since it listens on the node's loopback.
        """
        server = f"https://127.0.0.1:{self._ports[name]}"
        flags = f"--kubeconfig={ADMIN} --server={server} --insecure-skip-tls-verify"  # its certificate is self-signed
        return self._in_node(f"kubectl {flags} get --raw /metrics")

    def logs(self) -> str:
        """Returns the end of each running scheduler's log."""
        names = [f"{name}-{self._node}" for name in self._ports]
        return "\n".join(self._kubectl("-n", "kube-system", "logs", "--tail=50", name) for name in names)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    @property
    def _node(self) -> str:
        """The name of the control plane's node and of its container."""
        return f"{self._name}-control-plane"

    @property
    def _to_kubeconfig(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig)]

    def _create(self) -> None:
        configuration = self._folder / "kind.yaml"
        configuration.write_bytes(msgspec.yaml.encode(cluster_configuration(self._configurations)))
        image = ["--image", self._image] if self._image else []
        kind = ["kind", "create", "cluster", "--name", self._name, "--config", str(configuration), "--wait", "180s"]
        _run(*kind, *image, *self._to_kubeconfig)

    def _install_kwok(self) -> None:
        """Installs kwok, which keeps every node with our annotation ready and moves its pods through their phases."""
        self._kubectl("apply", "-f", f"{KWOK}/kwok.yaml")
        self._kubectl("wait", "--for=condition=Established", WAIT, "crd/stages.kwok.x-k8s.io")
        self._kubectl("apply", "-f", f"{KWOK}/stage-fast.yaml")
        self._kubectl("-n", "kube-system", "rollout", "status", "deployment/kwok-controller", WAIT)

    def _take_over_scheduling(self) -> None:
        own = f"{MANIFESTS}/kube-scheduler.yaml"
        self._kubeadm: KubernetesObject = msgspec.yaml.decode(self._in_node(f"cat {own}"))
        self._in_node(f"rm {own}")
        self._kubectl("-n", "kube-system", "wait", "--for=delete", WAIT, f"pod/kube-scheduler-{self._node}")

    def _kubectl(self, *arguments: str) -> str:
        return _run("kubectl", *self._to_kubeconfig, *arguments)

    def _in_node(self, script: str, text: str = "") -> str:
        return _run("docker", "exec", "-i", self._node, "sh", "-c", script, text=text)


def _run(program: str, *arguments: str, text: str = "") -> str:
    """Returns what the command printed. Raises ProcessFailed with its standard error."""
    if shutil.which(program) is None:
        raise ProcessFailed(f"a kind cluster needs {program} on the PATH")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProcessFailed(f"{program} {' '.join(arguments)} ended with status {done.returncode}\n{done.stderr}")
    return done.stdout
