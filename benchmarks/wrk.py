"""Load from wrk, a client with little overhead: requests a second, and latencies as a histogram by microsecond.

Every answer must be a 200, since an error such as a 413 is fast. wrk counts only statuses over 399 as errors, so the
answers to the warm-up are checked here.

wrk corrects for coordinated omission: for each late answer it adds latencies that a client would have seen that does
not wait for it (`stats_correct` in wrk's stats.c). kube-scheduler does wait, so the added latencies are removed again
and the figures are those observed.
"""

import contextlib
import itertools
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.cores import pinned
from benchmarks.loopback import connect, request_bytes
from benchmarks.process_costs import cpu_seconds
from testbed.debian_package import find_package, with_libraries

SERIAL = "@serial@"  # in a body: replaced by eight digits, different in each request
TIMEOUT_SECONDS = 10
WARM_UP = 0.2  # of a load's own time; it comes before the load and is not measured
SCRIPT = Path(__file__).with_suffix(".lua")


class LoadFailed(RuntimeError):
    """An answer was not a 200 or did not come; the message gives the number of each failure."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a load: `latencies` maps microseconds to numbers of answers.

    `cpu_seconds` is the server's processor time, 0 if its process is not known.
    """

    requests: int
    seconds: float
    latencies: Mapping[int, int]
    cpu_seconds: float = 0.0

    @property
    def requests_per_second(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds

    @property
    def p50(self) -> float:
        """The median, in milliseconds."""
        return self.percentile(50)

    @property
    def p99(self) -> float:
        """The 99th percentile, in milliseconds."""
        return self.percentile(99)

    @property
    def cpu_microseconds(self) -> float:
        """Processor time of the server for one request."""
        return self.cpu_seconds * 1e6 / self.requests

    def percentile(self, percent: float) -> float:
        """Returns the least latency that `percent` of the answers do not exceed, in milliseconds."""
        wanted = sum(self.latencies.values()) * percent / 100
        seen = 0
        for microseconds in sorted(self.latencies):
            seen += self.latencies[microseconds]
            if seen >= wanted:
                return microseconds / 1000
        raise LoadFailed("nothing was measured")


class Target(msgspec.Struct, frozen=True):
    """A URL, and the bodies to draw from, in which each request replaces `SERIAL` with a number of its own.

    `pid` is that of the server, whose processor time is then measured.
    """

    url: str
    bodies: Sequence[bytes]
    pid: int = 0


class _Said(msgspec.Struct):
    requests: int
    microseconds: int
    connect: int
    read: int
    write: int
    status: int
    timeout: int
    latencies: dict[int, int]


def find_wrk() -> Path:
    """Returns the wrk program, unpacked from Debian's package. Raises ProgramMissing."""
    return find_package("wrk", "libluajit-5.1-2", "libluajit-5.1-common") / "usr" / "bin" / "wrk"


def take_turns(
    targets: Mapping[str, Target], *, connections: int, seconds: float, rounds: int, core: int
) -> dict[str, Load]:
    """POSTs with wrk on `core` in `rounds` turns, A, B, A, B, so that drift affects all alike.

    Returns the figures by name. Each request sends one of the bodies, drawn at random.

    Raises:
        UnexpectedStatus: an answer to the warm-up was not a 200.
        LoadFailed: an answer was an error, or did not come.
        ProgramMissing: there is no wrk.
    """
    turns: dict[str, list[Load]] = {name: [] for name in targets}
    with contextlib.ExitStack() as stack:
        sent = {name: stack.enter_context(_in_files(target.bodies)) for name, target in targets.items()}
        for _ in range(rounds):
            for name, bodies in sent.items():
                target = targets[name]
                found = bodies.load(target.url, connections=connections, seconds=seconds, core=core, pid=target.pid)
                turns[name].append(found)
    return {name: pooled(loads) for name, loads in turns.items()}


def pooled(loads: Sequence[Load]) -> Load:
    """Returns the figures of several loads as one."""
    latencies = Counter[int]()
    for one in loads:
        latencies.update(one.latencies)
    return Load(
        requests=sum(one.requests for one in loads),
        seconds=sum(one.seconds for one in loads),
        latencies=latencies,
        cpu_seconds=sum(one.cpu_seconds for one in loads),
    )


def parse_output(output: str, connections: int) -> Load:
    """Parses what wrk and our script print. Raises LoadFailed if there are no figures, or if they count a failure."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise LoadFailed(f"wrk told no figures: {output.strip()[-300:]!r}")
    said = msgspec.json.decode(lines[-1], type=_Said)
    failed = {name: getattr(said, name) for name in ("connect", "read", "write", "status", "timeout")}
    if any(failed.values()):
        told = ", ".join(f"{number} of {name}" for name, number in failed.items() if number)
        raise LoadFailed(f"among {said.requests} answers there were failures: {told}")
    latencies = _as_seen(said, connections)
    if sum(latencies.values()) != said.requests:
        raise LoadFailed(f"{said.requests} answers have {sum(latencies.values())} latencies")
    return Load(requests=said.requests, seconds=said.microseconds / 1e6, latencies=latencies)


def _as_seen(said: _Said, connections: int) -> dict[int, int]:
    """Returns the latencies without those that wrk has added.

    For each latency over twice the mean, wrk adds that latency less one mean, less two means, and so on. It works
    upwards and adds below. So, going downwards, each count is free of additions once those of higher latencies are
    subtracted.
    """
    counts = dict(said.latencies)
    if said.requests < connections:
        return counts
    mean = said.microseconds // (said.requests // connections)
    for late in sorted((latency for latency in counts if latency >= 2 * mean), reverse=True):
        for added in range(late - mean, mean, -mean):
            counts[added] = counts.get(added, 0) - counts[late]
    return {latency: count for latency, count in counts.items() if count}


@contextlib.contextmanager
def _in_files(bodies: Sequence[bytes]) -> Iterator["_Bodies"]:
    """Writes the bodies to files, since wrk's script reads them from there."""
    with tempfile.TemporaryDirectory() as scratch:
        for number, body in enumerate(bodies, 1):
            (Path(scratch) / str(number)).write_bytes(body)
        yield _Bodies(Path(scratch), bodies)


class _Bodies(msgspec.Struct, frozen=True):
    """The bodies, and the folder that holds a file of each."""

    folder: Path
    bodies: Sequence[bytes]

    def load(self, url: str, *, connections: int, seconds: float, core: int, pid: int = 0) -> Load:
        """Warms up without wrk and measures; with `pid`, the processor time of that process too.

        If no answer comes within the time, the load is repeated with four and then sixteen times as long.
        """
        self._warm_up(url, seconds * WARM_UP)
        for longer in (1, 4, 16):
            before = cpu_seconds(pid) if pid else 0.0
            measured = self._run(url, connections, seconds * longer, core)
            if measured.requests:
                spent = cpu_seconds(pid) - before if pid else 0.0
                return msgspec.structs.replace(measured, cpu_seconds=spent)
        raise LoadFailed(f"no answer from {url} in {seconds * longer:g} s")

    def _warm_up(self, url: str, seconds: float) -> None:
        """Sends requests for that long, each body at least once, and checks every status."""
        deadline = time.monotonic() + seconds
        path = urlsplit(url).path
        with connect(url) as connection:
            first = _first_serial()
            for serial, body in enumerate(itertools.cycle(self.bodies), first):
                if serial - first >= len(self.bodies) and time.monotonic() > deadline:
                    return
                connection.ask(request_bytes(path, body.replace(SERIAL.encode(), b"%08d" % (serial % 10**8))))

    def _arguments(self) -> list[str]:
        """The arguments of the script."""
        marker = SERIAL if SERIAL.encode() in self.bodies[0] else ""
        return [str(self.folder), str(len(self.bodies)), marker, str(_first_serial())]

    def _run(self, url: str, connections: int, seconds: float, core: int) -> Load:
        """Runs wrk for `seconds`. It takes whole seconds only, so it gets more and is interrupted, then prints."""
        command = [
            *with_libraries(find_wrk()),
            "--threads=1",
            f"--connections={connections}",
            f"--duration={int(seconds) + 60}s",
        ]
        command += [f"--timeout={TIMEOUT_SECONDS}s", f"--script={SCRIPT}", url, "--", *self._arguments()]
        with pinned(core):
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            _wait_until_under_way(process)
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=2 * TIMEOUT_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise LoadFailed(f"wrk against {url} ended with {process.returncode}: {output.strip()[-300:]!r}")
        return parse_output(output, connections)


def _first_serial() -> int:
    """Returns the current microsecond.

    A run sends less than one request a microsecond, so serials of runs do not overlap.
    """
    return time.monotonic_ns() // 1000 % 10**8


def _wait_until_under_way(process: subprocess.Popen[str]) -> None:
    """Waits until wrk's load is under way, or has ended.

    wrk's first thread catches SIGINT, takes the time and sleeps. Before it sleeps it may have to wait for the core, and
    a load that is interrupted then is too short. See proc(5), SigCgt and State.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        catches = int(status.get("SigCgt", ["0"])[0], 16) >> (signal.SIGINT - 1) & 1
        if catches and status["State"][0] == "S":
            return
        time.sleep(0.002)
