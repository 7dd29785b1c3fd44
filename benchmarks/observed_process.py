"""Runs `multiarch-extender serve` and observes it through its log, its endpoints and the kernel.

Other files make the requests.
"""

import contextlib
import http.client
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cores import pinned
from benchmarks.far_registry import FarRegistry
from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.quiet_cluster import QuietCluster
from testbed.child import ServerFailed
from testbed.processes import Process
from testbed.shipped_environment import as_shipped

READY_SECONDS = 60
END_SECONDS = 30
_POLL_SECONDS = 0.002
_SETTINGS: Mapping[str, object] = {
    "scheduler.listen": "127.0.0.1:0",
    "admission.listen": "127.0.0.1:0",
    "admission.tls": "null",
    "operations.listen": "127.0.0.1:0",
    "cache.url": "'memory:'",
    "shutdown.grace_seconds": 1,
}


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's figures of a process. A megabyte is 10^6 bytes; `peak_megabytes` is the highest since its start."""

    megabytes: float
    peak_megabytes: float
    threads: int
    files: int
    sockets: int
    cpu_seconds: float


class ObservedProcess:
    """A running service: `addresses` as `host:port` by listener, and the seconds from its start until it was ready."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self.addresses: dict[str, str] = {}
        self.ready_seconds = 0.0
        self._process = process

    @property
    def events(self) -> Counter[tuple[str, str]]:
        """How often each event was logged, by level and event."""
        return Counter((said["level"], said["event"]) for said in self._log())

    def wait_until_ready(self, started: float) -> None:
        """Returns when the service is ready and sets `ready_seconds`, counted from `started` of `time.perf_counter`.

        Raises ServerFailed.
        """
        while time.perf_counter() - started < READY_SECONDS and self._process.is_running:
            if not self.addresses and any(said["event"] == "service.started" for said in self._log()):
                opened = (said for said in self._log() if said["event"] == "listener.opened")
                self.addresses = {said["listener"]: said["address"] for said in opened}
            if self.addresses and self.get("/readyz")[0] == 200:
                self.ready_seconds = time.perf_counter() - started
                return
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(f"it is not ready:\n{self._process.tail()}")

    def _log(self) -> Iterator[dict[str, Any]]:
        """Yields the whole lines of the log; one that is no JSON as an error."""
        for line in self._process.log.read_bytes().splitlines(keepends=True):
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError:
                if line.endswith(b"\n"):
                    yield {"level": "error", "event": line.decode(errors="replace").strip()}

    def get(self, path: str) -> tuple[int, bytes]:
        """Returns the status and body of an operations endpoint."""
        connection = http.client.HTTPConnection(self.addresses["operations"], timeout=END_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def metric(self, sample: str) -> float:
        """Returns the value of a sample of /metrics, named with its labels; 0 if it is missing."""
        lines = self.get("/metrics")[1].decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == sample), 0.0)

    def look(self) -> ProcessFigures:
        """Returns the process's figures of this moment. Raises ServerFailed if it has ended."""
        folder = Path(f"/proc/{self.pid}")
        try:
            used, spent_seconds = memory(self.pid), cpu_seconds(self.pid)
            threads = len(list((folder / "task").iterdir()))
            ends = [_target(path) for path in (folder / "fd").iterdir()]
        except OSError as exc:
            raise ServerFailed("it has ended") from exc
        return ProcessFigures(
            megabytes=used.now_megabytes,
            peak_megabytes=used.most_megabytes,
            threads=threads,
            files=len(ends),
            sockets=sum(end.startswith("socket:") for end in ends),
            cpu_seconds=spent_seconds,
        )


@contextlib.contextmanager
def observed_process(
    *,
    core: int,
    cluster: QuietCluster,
    registry: FarRegistry | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[ObservedProcess]:
    """Runs the service on that core until the context is left, ready, listening on free ports of loopback.

    It may ask that registry. `settings` are those that differ from the defaults otherwise.

    Raises:
        ServerFailed: it does not become ready.
    """
    chosen = {**_SETTINGS, "cluster": cluster.kubeconfig, **(settings or {})}
    if registry:
        chosen |= dict.fromkeys(("registry.plain_http", "registry.allow"), msgspec.json.encode(registry.hosts).decode())
    options = [part for path, value in chosen.items() for part in ("--set", f"{path}={value}")]
    command = as_shipped([sys.executable, "-m", "extender", "serve", *options])
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        with pinned(core):
            process = Process("service", command, Path(scratch) / "service.log")
        service = ObservedProcess(process)
        try:
            service.wait_until_ready(started)
            yield service
        finally:
            process.stop(END_SECONDS)


def _target(descriptor: Path) -> str:
    """Returns the target of a file descriptor; empty if it has been closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""
