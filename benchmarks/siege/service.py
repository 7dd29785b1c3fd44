"""The service of a siege: `multiarch-extender serve` with the shipped settings, under its memory limit, on one core.

The settings are those of deploy/manifests/second-scheduler.yaml. Different are only the
paths of files, the kubeconfig, an authority that is trusted for the registries of the siege, a credential-provider
plugin, which hangs, for one of the attackers' zones.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import trustme

from benchmarks.cores import Cores, pinned
from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.siege.attacks import PLUGIN_PATTERN
from benchmarks.siege.memory_limit import MemoryLimit
from benchmarks.siege.network import API_PORT, API_SERVER, ATTACKING_ZONE, HONEST_ZONE, OPERATIONS_PORT
from benchmarks.siege.watched_service import HOLDS
from testbed.child import ServerFailed
from testbed.shipped_files import Mode, service_configuration

READY_SECONDS, END_SECONDS = 60.0, 30.0
LOOK_SECONDS = 0.05
_KUBECONFIG = f"""
apiVersion: v1
kind: Config
current-context: siege
contexts: [{{name: siege, context: {{cluster: siege, user: service}}}}]
clusters: [{{name: siege, cluster: {{server: "http://{API_SERVER}:{API_PORT}"}}}}]
users: [{{name: service, user: {{token: none}}}}]
"""
_REAL_TIME = ("chrt", "--rr", "1")
_PLUGIN = "hanging-plugin"


class Grounds(NamedTuple):
    """The files of a siege: the service's configuration, the registries' certificate and key."""

    folder: Path
    configuration: Path
    certificate: Path
    key: Path

    @property
    def registries_log(self) -> Path:
        """The file to which the honest registries write how late they are."""
        return self.folder / "registries.log"


def write_grounds(folder: Path) -> Grounds:
    """Issues certificates, and writes the configuration into `folder`."""
    authority = trustme.CA(organization_name="multiarch-extender siege")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    registries = _issue(authority, folder / "registries", *_registry_names())
    admission = _issue(authority, folder / "admission", "multiarch-scheduler.multiarch-extender.svc")
    (folder / "kubeconfig").write_text(_KUBECONFIG)
    settings = service_configuration(Mode.SECOND)
    settings["cluster"] = {"kubeconfig": str(folder / "kubeconfig")}
    settings["admission"] |= {
        "tls": {"certificate": str(admission[0]), "key": str(admission[1])},
    }
    settings["registry"] = {
        "ca_files": [str(folder / "authority.pem")],
        "credential_providers": {"config": str(_write_plugin(folder)), "bin_dir": str(folder)},
    }
    configuration = folder / "config.yaml"
    configuration.write_bytes(msgspec.yaml.encode(settings))
    return Grounds(folder, configuration, *registries)


def _registry_names() -> list[str]:
    kinds = {"any", "hang", "drip", "hostile", "429", "late", "plugin", "circle"}
    return [f"*.{HONEST_ZONE}", *(f"*.{kind}.{ATTACKING_ZONE}" for kind in sorted(kinds))]


def _issue(authority: trustme.CA, stem: Path, *names: str) -> tuple[Path, Path]:
    issued = authority.issue_cert(*names)
    certificate, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return certificate, key


def _write_plugin(folder: Path) -> Path:
    """Writes the plugin and its CredentialProviderConfig, and returns the latter's path."""
    program = folder / _PLUGIN
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [
            {
                "name": _PLUGIN,
                "matchImages": [PLUGIN_PATTERN],
                "defaultCacheDuration": "12h",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            }
        ],
    }
    path = folder / "plugins.yaml"
    path.write_bytes(msgspec.yaml.encode(config))
    return path


class Conditions(NamedTuple):
    """What the service runs under: the cores, its memory limit, and its scheduling class.

    In a real-time class nothing else on this machine takes its core, which is for machines that are not quiet.
    """

    cores: Cores
    limit: MemoryLimit
    is_real_time: bool = False

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs `command` under these conditions; its core is the caller's affair."""
        return self.limit.command([*(_REAL_TIME if self.is_real_time else ()), *command])


class ProcessorTime(NamedTuple):
    """The seconds that a process has used, and those that its main thread has waited for a core."""

    used_seconds: float
    waited_seconds: float


class BesiegedService:
    """A running service, which is started again when it ends, as a kubelet does.

    `most_bytes` is the most resident memory that was seen, `deaths` how often it has ended.
    """

    def __init__(self, grounds: Grounds, name: str, conditions: Conditions) -> None:
        self.holds = grounds.folder / f"{name}.holds"
        self.log = grounds.folder / f"{name}.log"
        self.most_megabytes, self.deaths = 0.0, 0
        self._conditions = conditions
        state = grounds.folder / f"{name}.state"
        state.mkdir()
        self._environment = {**os.environ, HOLDS: str(self.holds), "STATE_DIRECTORY": str(state)}
        self._command = [
            *(sys.executable, "-m", "benchmarks.siege.watched_service"),
            *("serve", f"--config={grounds.configuration}"),
        ]
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look_on, daemon=True)
        self._process = self._start()

    def wait_until_ready(self) -> None:
        """Returns when /readyz answers 200; from then on memory is noted. Raises ServerFailed."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):  # of which HTTPError is one: a status that is not 200
                urllib.request.urlopen(f"http://127.0.0.1:{OPERATIONS_PORT}/readyz", timeout=5).close()
                self._looking.start()
                return
            time.sleep(0.05)
        raise ServerFailed(f"the service is not ready:\n{self.log.read_text()[-2000:]}")

    def processor_time(self) -> ProcessorTime:
        """Returns the times of the current process; zeros if it has just ended."""
        pid = self._process.pid
        try:
            waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
            return ProcessorTime(cpu_seconds(pid), waited)
        except OSError:
            return ProcessorTime(0.0, 0.0)

    def end(self) -> None:
        """Ends the service for good; a drain may take as long as its grace period, so it is killed."""
        self._ended.set()
        if self._looking.is_alive():
            self._looking.join(END_SECONDS)
        self._process.kill()
        self._process.wait(END_SECONDS)

    def _look_on(self) -> None:
        """Notes memory, and starts the service again when it has ended. Runs in a thread until `end`."""
        while not self._ended.wait(LOOK_SECONDS):
            if self._process.poll() is not None:
                self.deaths += 1
                self._process = self._start()
            with contextlib.suppress(OSError, KeyError):
                self.most_megabytes = max(self.most_megabytes, memory(self._process.pid).most_megabytes)

    def _start(self) -> "subprocess.Popen[bytes]":
        with pinned(self._conditions.cores.server), self.log.open("ab") as log:
            command = self._conditions.command(self._command)
            return subprocess.Popen(command, env=self._environment, stderr=log, stdout=log)


@contextlib.contextmanager
def besieged_service(grounds: Grounds, name: str, conditions: Conditions) -> Iterator[BesiegedService]:
    """Runs the service until the context is left, ready. Raises ServerFailed."""
    service = BesiegedService(grounds, name, conditions)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.end()
        conditions.limit.kill_all()
