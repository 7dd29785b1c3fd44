"""etcd, kube-apiserver and kube-schedulers as processes on loopback: a real control plane without containers.

There is no kubelet, and no controller runs unless it is asked for (`running_controllers`). So nodes are objects, bound
pods stay Pending, namespaces are never finalised, and service accounts get no secrets. The admission plugins that wait
for those controllers are off.
"""

import http.client
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from testbed.binaries import CONTROLLER_MANAGER, Binaries
from testbed.certificates import Authority, KeyPair
from testbed.cluster_provider import OPEN_PATHS, complete_scheduler_configuration
from testbed.processes import Process, answers, free_port
from testbed.service_proxy import egress_selection

READY_SECONDS = 60.0  # for a busy machine; usually it takes a few seconds
# kube-apiserver takes a while to end after SIGTERM; if its etcd has ended first, it never ends by itself.
GRACE_SECONDS = 15.0
LOOPBACK = "127.0.0.1"


class LocalCluster:
    """A `ClusterProvider` made of processes. `up` works again after `down` and starts from an empty cluster.

    kube-apiserver reaches Services by the proxy at the socket `service_proxy` (`open_service_proxy`) if one is named.
    With `service_accounts` pods get the tokens of their accounts, which takes controllers and kubelets that run.
    """

    def __init__(
        self, binaries: Binaries, service_proxy: Path | None = None, *, service_accounts: bool = False
    ) -> None:
        self._binaries, self._service_proxy = binaries, service_proxy
        self._off = [*(() if service_accounts else ("ServiceAccount",)), "TaintNodesByCondition"]
        self._running = ExitStack()
        self._processes: dict[str, Process] = {}
        self._scheduler_ports: dict[str, int] = {}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._folder / "admin.kubeconfig"

    @property
    def port(self) -> int:
        """The port of kube-apiserver, on loopback."""
        return self._port

    @property
    def processes(self) -> list[Process]:
        """etcd, kube-apiserver, each scheduler and the controllers, in the order in which they were first started."""
        return list(self._processes.values())

    @property
    def host_address(self) -> str:
        """Loopback, since the programs run on this machine."""
        return LOOPBACK

    def up(self) -> None:
        """Starts etcd, then kube-apiserver; returns when both are ready. Raises ProcessFailed."""
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
        """Ends the programs in the reverse order of their start and removes the folder."""
        self._running.close()

    def start_scheduler(
        self, configuration: Mapping[str, Any] | str = "", name: str = "kube-scheduler", arguments: Sequence[str] = ()
    ) -> None:
        """See ClusterProvider. Raises ProcessFailed."""
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
        scheduler.wait_until(partial(answers, port, "/readyz", self._tls), READY_SECONDS)

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """Ends that scheduler. Its log stays until the cluster goes down."""
        self._stop(name)

    @contextmanager
    def running_controllers(self, program: Path, *controllers: str) -> Iterator[None]:
        """Runs kube-controller-manager with these controllers only, such as `replicaset-controller`, in the block.

        `find_controller_manager` finds the program. Raises ProcessFailed.
        """
        kubeconfig = self._folder / f"{CONTROLLER_MANAGER}.kubeconfig"
        identity = self._authority.issue(f"system:{CONTROLLER_MANAGER}")
        self._authority.write_kubeconfig(kubeconfig, self._server, identity)
        port = free_port()
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(controllers)}",
            "--use-service-account-credentials",  # each controller then has its own rights, as in any cluster
            "--leader-elect=false",
            f"--root-ca-file={self._authority.certificate}",
            *_serving_flags(port, self._serving),
        ]
        manager = self._start(self._running, CONTROLLER_MANAGER, program, flags)
        try:
            manager.wait_until(partial(answers, port, "/healthz", self._tls), READY_SECONDS)
            yield
        finally:
            self._stop(CONTROLLER_MANAGER)

    def apiserver_scraping(self) -> dict[str, Any]:
        """Returns the scrape configuration by which Prometheus reads kube-apiserver's /metrics as the administrator."""
        return {
            "job_name": "kube-apiserver",
            "scheme": "https",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "tls_config": {
                "ca_file": str(self._authority.certificate),
                "cert_file": str(self._admin.certificate),
                "key_file": str(self._admin.key),
            },
            "static_configs": [{"targets": [f"{LOOPBACK}:{self._port}"]}],
        }

    def scheduler_metrics(self, name: str = "kube-scheduler") -> str:
        """Returns that scheduler's /metrics; may be called in any thread. Raises OSError."""
        port = self._scheduler_ports[name]
        connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=5, context=self._tls)
        return _ask(connection, "GET", "/metrics").decode()

    def stop_apiserver(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Ends kube-apiserver, and with it its watch cache and every watch; etcd and the schedulers keep running."""
        self._processes["kube-apiserver"].stop(grace_seconds)

    def start_apiserver(self) -> None:
        """Starts kube-apiserver again, at its old address and on etcd's data, and does not wait until it is ready.

        Call it from the main thread, as for every process (see parent_death.py).
        """
        self._start_apiserver(self._running)

    def wait_for_apiserver(self) -> None:
        """Returns when kube-apiserver is ready; may be called in any thread. Raises ProcessFailed."""
        for path in ("/readyz", "/api/v1/namespaces/default"):  # the namespace is created a moment after readiness
            self._processes["kube-apiserver"].wait_until(partial(answers, self._port, path, self._tls), READY_SECONDS)

    def compact_etcd(self) -> int:
        """Compacts etcd to its newest revision, as kube-apiserver does every five minutes; returns the revision."""
        found = self._ask_etcd("range", {"key": "AA=="})  # any key: only the header matters
        revision = int(found["header"]["revision"])
        self._ask_etcd("compaction", {"revision": revision, "physical": True})
        return revision

    def logs(self) -> str:
        """Returns the end of each program's log."""
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
        """Starts etcd on two free ports. It does not fsync, since its data is deleted with the folder."""
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
        etcd.wait_until(partial(answers, self._etcd_port, "/health"), READY_SECONDS)

    def _ask_etcd(self, question: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the response of etcd's JSON gateway. Raises OSError."""
        connection = http.client.HTTPConnection(LOOPBACK, self._etcd_port, timeout=READY_SECONDS)
        answer = _ask(connection, "POST", f"/v3/kv/{question}", msgspec.json.encode(body))
        return msgspec.json.decode(answer, type=dict[str, Any])

    def _start_apiserver(self, running: ExitStack) -> None:
        flags = [
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
            "--authorization-mode=RBAC",
            f"--client-ca-file={self._authority.certificate}",
            f"--requestheader-client-ca-file={self._authority.certificate}",  # else kube-scheduler looks for it in vain
            "--requestheader-allowed-names=nobody",
            f"--service-account-issuer={self._server}",
            f"--service-account-key-file={self._tokens}",
            f"--service-account-signing-key-file={self._tokens}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--disable-admission-plugins={','.join(self._off)}",
            f"--advertise-address={LOOPBACK}",
            f"--kubelet-client-certificate={self._admin.certificate}",  # for logs and exec, where there are kubelets
            f"--kubelet-client-key={self._admin.key}",
            "--endpoint-reconciler-type=none",  # the API server's validation refuses endpoints on loopback
            *_serving_flags(self._port, self._serving),
        ]
        if self._service_proxy:
            egress = self._folder / "egress.yaml"
            egress.write_bytes(msgspec.yaml.encode(egress_selection(self._service_proxy)))
            flags.append(f"--egress-selector-config-file={egress}")
        self._start(running, "kube-apiserver", self._binaries.kube_apiserver, flags)

    def _start(self, running: ExitStack, name: str, program: Path, flags: Sequence[str]) -> Process:
        process = Process(name, [str(program), *flags], self._folder / f"{name}.log")
        if name not in self._processes:  # a program that is started again keeps its place in the order of stopping
            running.callback(self._stop, name)
        self._processes[name] = process
        return process

    def _stop(self, name: str) -> None:
        self._processes[name].stop(GRACE_SECONDS)


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """Returns the body of the answer, and closes the connection. Raises OSError if its status is not 200."""
    with closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        answer = response.read()
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"{path} is answered with {response.status}: {answer.decode(errors='replace')}")
    return answer


def _serving_flags(port: int, pair: KeyPair) -> list[str]:
    return [
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-private-key-file={pair.key}",
    ]
