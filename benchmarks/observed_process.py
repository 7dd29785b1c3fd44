"""Runs `multiarch-extender serve` and observes it through its log, its endpoints and the kernel.

Other files make the requests.
"""

import contextlib
import http.client
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.cores import pinned
from benchmarks.far_registry import FarRegistry
from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.quiet_cluster import QuietCluster
from testbed.child import ServerFailed
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

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self.addresses: dict[str, str] = {}
        self.events: Counter[tuple[str, str]] = Counter()  # how often each event was logged, by level and event
        self.ready_seconds = 0.0
        self._process = process
        self._listening = threading.Event()

    def read_log(self, lines: IO[bytes]) -> None:
        """Counts the events of the log until it ends, and takes the addresses from those of the listeners."""
        for line in lines:
            try:
                said: dict[str, Any] = msgspec.json.decode(line)
            except msgspec.DecodeError:
                said = {"level": "error", "event": line.decode(errors="replace").strip()}
            self.events[said["level"], said["event"]] += 1
            if said["event"] == "listener.opened":
                self.addresses[said["listener"]] = said["address"]
            if said["event"] == "service.started":
                self._listening.set()
        self._listening.set()

    def wait_until_ready(self, started: float) -> None:
        """Returns when the service is ready and sets `ready_seconds`, counted from `started` of `time.perf_counter`.

        Raises ServerFailed.
        """
        self._listening.wait(READY_SECONDS)
        while time.perf_counter() - started < READY_SECONDS and self._process.poll() is None and self.addresses:
            if self.get("/readyz")[0] == 200:
                self.ready_seconds = time.perf_counter() - started
                return
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(f"it is not ready: {dict(self.events)}")

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
    started = time.perf_counter()
    with pinned(core):
        process = subprocess.Popen(
            as_shipped([sys.executable, "-m", "extender", "serve", *options]), stderr=subprocess.PIPE
        )
    assert process.stderr
    service = ObservedProcess(process)
    reader = threading.Thread(target=service.read_log, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        service.wait_until_ready(started)
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(END_SECONDS)
        process.stderr.close()


def _target(descriptor: Path) -> str:
    """Returns the target of a file descriptor; empty if it has been closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""
