"""etcd, kube-apiserver and kube-schedulers as processes on loopback: a real control plane without containers.

Knows the flags of the three programs and the order they live and die in. There is no controller-manager and no kubelet:
nodes are objects, bound pods stay Pending, namespaces are never finalised, no service account gets its secrets; so the
admission plugins that wait for those controllers are off.
"""

import http.client
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from testbed.binaries import Binaries
from testbed.certificates import Authority, KeyPair
from testbed.cluster_provider import OPEN_PATHS, complete_scheduler_configuration
from testbed.processes import Process, free_port

READY_SECONDS = 60.0  # a busy machine; seconds are the rule
# kube-apiserver takes a while to let go after SIGTERM; one whose etcd has gone first never ends by itself.
GRACE_SECONDS = 15.0
LOOPBACK = "127.0.0.1"
WITHOUT_CONTROLLERS = "ServiceAccount,TaintNodesByCondition"


class LocalCluster:
    """A `ClusterProvider` made of processes; `up` works again after `down`, with nothing kept."""

    def __init__(self, binaries: Binaries) -> None:
        self._binaries = binaries
        self._running = ExitStack()
        self._processes: dict[str, Process] = {}
        self._scheduler_ports: dict[str, int] = {}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._folder / "admin.kubeconfig"

    @property
    def processes(self) -> list[Process]:
        """etcd, kube-apiserver and each scheduler, in the order they were started."""
        return list(self._processes.values())

    @property
    def host_address(self) -> str:
        """Loopback: the programs run beside us."""
        return LOOPBACK

    def up(self) -> None:
        """Brings up etcd, then kube-apiserver. Raises ProcessFailed."""
        with ExitStack() as running:  # unwound backwards: schedulers, kube-apiserver, etcd, folder
            self._processes.clear()
            self._folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="multiarch-controlplane-")))
            self._authority = Authority(self._folder)
            self._admin = self._authority.issue("admin", group="system:masters")
            self._serving = self._authority.issue("serving")
            self._tls = self._authority.trust(self._admin)
            self._tokens = self._authority.issue("service-accounts").key
            self._start_etcd(running)
            self._port = free_port()
            self._authority.write_kubeconfig(self.kubeconfig, self._server, self._admin)
            self._start_apiserver(running)
            self.wait_for_apiserver()
            self._running = running.pop_all()

    def down(self) -> None:
        """Ends all in the right order and removes the folder."""
        self._running.close()

    def start_scheduler(
        self, configuration: Mapping[str, Any] | str = "", name: str = "kube-scheduler", arguments: Sequence[str] = ()
    ) -> None:
        """See ClusterProvider; kube-scheduler 1.31 or later, as /readyz is asked. Raises ProcessFailed."""
        identity = self._authority.issue("system:kube-scheduler")
        kubeconfig, config = self._folder / f"{name}.kubeconfig", self._folder / f"{name}.yaml"
        self._authority.write_kubeconfig(kubeconfig, self._server, identity)
        config.write_bytes(msgspec.yaml.encode(complete_scheduler_configuration(configuration, str(kubeconfig))))
        port = self._scheduler_ports[name] = free_port()
        flags = [
            f"--config={config}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            OPEN_PATHS,
            *_serving_flags(port, self._serving),
            *arguments,
        ]
        scheduler = self._start(self._running, name, self._binaries.kube_scheduler, flags)
        scheduler.wait_until(partial(_answers, port, "/readyz", self._tls), READY_SECONDS)

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """Ends that scheduler; its log stays until the cluster goes down."""
        self._stop(name)

    def scheduler_metrics(self, name: str = "kube-scheduler") -> str:
        """What that scheduler's /metrics says; in any thread. Raises OSError."""
        return self._ask_scheduler(name, "/metrics", 5).decode()

    def scheduler_profile(self, name: str, seconds: int) -> bytes:
        """Where that scheduler spends its processor time from now on, for `go tool pprof`. As `scheduler_metrics`."""
        return self._ask_scheduler(name, f"/debug/pprof/profile?seconds={seconds}", seconds + 30)

    def stop_apiserver(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Ends kube-apiserver, and with it its memory and every watch; etcd and the schedulers go on without it."""
        self._processes["kube-apiserver"].stop(grace_seconds)

    def start_apiserver(self) -> None:
        """Starts kube-apiserver anew, at its old address and on what etcd holds, and does not wait.

        From the main thread, as every process (see parent_death.py).
        """
        self._start_apiserver(self._running)

    def wait_for_apiserver(self) -> None:
        """Returns when kube-apiserver is ready, and in any thread. Raises ProcessFailed."""
        for path in ("/readyz", "/api/v1/namespaces/default"):  # the namespace comes a moment after readiness
            self._processes["kube-apiserver"].wait_until(partial(_answers, self._port, path, self._tls), READY_SECONDS)

    def compact_etcd(self) -> int:
        """Makes etcd forget every version but the newest, as kube-apiserver does every five minutes; its revision."""
        found = self._ask_etcd("range", {"key": "AA=="})  # any key: the header counts
        revision = int(found["header"]["revision"])
        self._ask_etcd("compaction", {"revision": revision, "physical": True})
        return revision

    def logs(self) -> str:
        """The end of each program's log."""
        return "\n".join(process.tail() for process in self.processes)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    @property
    def _server(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def _start_etcd(self, running: ExitStack) -> None:
        """Starts etcd on ports no earlier one holds. Without fsync: its data goes with the folder."""
        self._etcd_port = free_port()
        clients, peers = f"http://{LOOPBACK}:{self._etcd_port}", f"http://{LOOPBACK}:{free_port()}"
        flags = [
            f"--data-dir={self._folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
        etcd = self._start(running, "etcd", self._binaries.etcd, flags)
        etcd.wait_until(partial(_answers, self._etcd_port, "/health"), READY_SECONDS)

    def _ask_etcd(self, question: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of etcd's JSON gateway. Raises OSError."""
        connection = http.client.HTTPConnection(LOOPBACK, self._etcd_port, timeout=READY_SECONDS)
        with closing(connection):
            connection.request("POST", f"/v3/kv/{question}", msgspec.json.encode(body))
            response = connection.getresponse()
            answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"etcd answers {question} with {response.status}: {answer.decode(errors='replace')}")
        return msgspec.json.decode(answer, type=dict[str, Any])

    def _ask_scheduler(self, name: str, path: str, timeout_seconds: float) -> bytes:
        port = self._scheduler_ports[name]
        connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=timeout_seconds, context=self._tls)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"{name} answers {path} with {response.status}: {answer.decode(errors='replace')}")
        return answer

    def _start_apiserver(self, running: ExitStack) -> None:
        flags = [
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
            "--authorization-mode=RBAC",
            f"--client-ca-file={self._authority.certificate}",
            f"--requestheader-client-ca-file={self._authority.certificate}",  # kube-scheduler looks for it in vain else
            "--requestheader-allowed-names=nobody",
            f"--service-account-issuer={self._server}",
            f"--service-account-key-file={self._tokens}",
            f"--service-account-signing-key-file={self._tokens}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--disable-admission-plugins={WITHOUT_CONTROLLERS}",
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",  # endpoints on loopback are refused by its own validation
            *_serving_flags(self._port, self._serving),
        ]
        self._start(running, "kube-apiserver", self._binaries.kube_apiserver, flags)

    def _start(self, running: ExitStack, name: str, program: Path, flags: Sequence[str]) -> Process:
        process = Process(name, [str(program), *flags], self._folder / f"{name}.log")
        if name not in self._processes:  # one that is started again keeps its place among those to be stopped
            running.callback(self._stop, name)
        self._processes[name] = process
        return process

    def _stop(self, name: str) -> None:
        self._processes[name].stop(GRACE_SECONDS)


def _serving_flags(port: int, pair: KeyPair) -> list[str]:
    return [
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-private-key-file={pair.key}",
    ]


def _answers(port: int, path: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200; a server that is not there yet is one that does not."""
    if tls is None:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    else:
        connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=5, context=tls)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
