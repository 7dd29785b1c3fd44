"""Load from wrk, a client that costs next to nothing: requests a second, and every latency as a count per microsecond.

Knows wrk, its Lua and its figures; must not know what is asked. Every answer must be a 200: a quick 413 looks like a
splendid benchmark. wrk counts statuses over 399 alone as errors, so the answers to the warm-up are looked at here.
For each late answer wrk adds latencies that a client would have seen that does not wait for it (coordinated omission;
`stats_correct` in wrk's stats.c). kube-scheduler does wait, so they are taken out again: what is told is what was seen.
"""

import contextlib
import itertools
import os
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
from testbed.debian_package import find_package

SERIAL = "@serial@"  # in a body: eight digits, of every request its own
TIMEOUT_SECONDS = 10
WARM_UP = 0.2  # of a load's own time, before it and not measured
SCRIPT = Path(__file__).with_suffix(".lua")


class LoadFailed(RuntimeError):
    """A load with an answer that was no 200, or without one; the message says how many of what."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: `latencies` says how many answers took how many microseconds."""

    requests: int
    seconds: float
    failures: int
    latencies: Mapping[int, int]

    @property
    def requests_per_second(self) -> float:
        """Answers over time."""
        return self.requests / self.seconds

    @property
    def p50(self) -> float:
        """The median, in milliseconds."""
        return self.percentile(50)

    @property
    def p99(self) -> float:
        """What one answer in a hundred exceeds, in milliseconds."""
        return self.percentile(99)

    @property
    def p999(self) -> float:
        """What one answer in a thousand exceeds, in milliseconds."""
        return self.percentile(99.9)

    def percentile(self, percent: float) -> float:
        """The least latency that `percent` of the answers did not exceed, in milliseconds."""
        wanted = sum(self.latencies.values()) * percent / 100
        seen = 0
        for microseconds in sorted(self.latencies):
            seen += self.latencies[microseconds]
            if seen >= wanted:
                return microseconds / 1000
        raise LoadFailed("nothing was measured")


class Target(msgspec.Struct, frozen=True):
    """Where to ask, and the bodies to draw from, in which `SERIAL` is a number that no other request has."""

    url: str
    bodies: Sequence[bytes]


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
    """The program, unpacked from Debian's package. Raises ProgramMissing."""
    return find_package("wrk", "libluajit-5.1-2", "libluajit-5.1-common") / "usr" / "bin" / "wrk"


def load(url: str, body: bytes | Sequence[bytes], *, connections: int, seconds: float, core: int) -> Load:
    """The figures of `seconds` of POSTs by wrk on `core`, after a fifth of that as a warm-up without it.

    Each request sends one of the bodies, drawn at random, with a number of its own in the place of `SERIAL`. Where the
    time was too short for a single answer, it takes up to sixteen times as long.

    Raises:
        UnexpectedStatus: an answer to the warm-up was no 200.
        LoadFailed: some answer was an error, or did not come.
        ProgramMissing: there is no wrk.
    """
    with _in_files([body] if isinstance(body, bytes) else body) as bodies:
        return bodies.load(url, connections=connections, seconds=seconds, core=core)


def take_turns(
    targets: Mapping[str, Target], *, connections: int, seconds: float, rounds: int, core: int
) -> dict[str, Load]:
    """Loads by name, each of `rounds` turns: A, B, A, B, so that whatever drifts meanwhile hits all alike."""
    turns: dict[str, list[Load]] = {name: [] for name in targets}
    with contextlib.ExitStack() as stack:
        sent = {name: stack.enter_context(_in_files(target.bodies)) for name, target in targets.items()}
        for _ in range(rounds):
            for name, bodies in sent.items():
                found = bodies.load(targets[name].url, connections=connections, seconds=seconds, core=core)
                turns[name].append(found)
    return {name: pooled(loads) for name, loads in turns.items()}


def pooled(loads: Sequence[Load]) -> Load:
    """All the answers of several loads as one."""
    latencies = Counter[int]()
    for one in loads:
        latencies.update(one.latencies)
    return Load(
        requests=sum(one.requests for one in loads),
        seconds=sum(one.seconds for one in loads),
        failures=sum(one.failures for one in loads),
        latencies=latencies,
    )


def parse_output(output: str, connections: int) -> Load:
    """The figures in what wrk and our script print. Raises LoadFailed if there are none, or a failure among them."""
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
    return Load(requests=said.requests, seconds=said.microseconds / 1e6, failures=0, latencies=latencies)


def _as_seen(said: _Said, connections: int) -> dict[int, int]:
    """The latencies without those that wrk has added: to each over twice the mean, that less one mean, two means…

    wrk goes through them upwards and adds below, so going downwards each is bare of additions when its own are taken
    away.
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
    """The bodies as files, which take up too much memory to be held twice."""
    with tempfile.TemporaryDirectory() as scratch:
        for number, body in enumerate(bodies, 1):
            (Path(scratch) / str(number)).write_bytes(body)
        yield _Bodies(Path(scratch), bodies)


class _Bodies(msgspec.Struct, frozen=True):
    """What is sent, and the folder in which each has a file."""

    folder: Path
    bodies: Sequence[bytes]

    def load(self, url: str, *, connections: int, seconds: float, core: int) -> Load:
        """As the function `load`."""
        self._warm_up(url, seconds * WARM_UP)
        for longer in (1, 4, 16):
            measured = self._run(url, connections, seconds * longer, core)
            if measured.requests:
                return measured
        raise LoadFailed(f"no answer from {url} in {seconds * longer:g} s")

    def _warm_up(self, url: str, seconds: float) -> None:
        """Ask for that long, at least once, and look at every status."""
        deadline = time.monotonic() + seconds
        path = urlsplit(url).path
        with connect(url) as connection:
            for serial, body in enumerate(itertools.cycle(self.bodies), _first_serial()):
                connection.ask(request_bytes(path, body.replace(SERIAL.encode(), b"%08d" % (serial % 10**8))))
                if time.monotonic() > deadline:
                    return

    def _arguments(self) -> list[str]:
        """The script's."""
        marker = SERIAL if SERIAL.encode() in self.bodies[0] else ""
        return [str(self.folder), str(len(self.bodies)), marker, str(_first_serial())]

    def _run(self, url: str, connections: int, seconds: float, core: int) -> Load:
        """wrk for `seconds`: it knows whole ones only, so it is told more and interrupted, upon which it sums up."""
        program = find_wrk()
        libraries = ":".join(sorted({str(path.parent) for path in program.parents[1].glob("lib/**/*.so*")}))
        command = [str(program), "--threads=1", f"--connections={connections}", f"--duration={int(seconds) + 60}s"]
        command += [f"--timeout={TIMEOUT_SECONDS}s", f"--script={SCRIPT}", url, "--", *self._arguments()]
        with pinned(core):
            process = subprocess.Popen(
                command,
                env=os.environ | {"LD_LIBRARY_PATH": libraries},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            _wait_until_interruptible(process)
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
    """The microsecond: no run, which takes longer than one per request, comes up to where the next one begins."""
    return time.monotonic_ns() // 1000 % 10**8


def _wait_until_interruptible(process: subprocess.Popen[str]) -> None:
    """Until wrk catches SIGINT, which it does from the moment its load has begun, or has ended; see proc(5), SigCgt."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
        if int(caught, 16) >> (signal.SIGINT - 1) & 1:
            return
        time.sleep(0.002)
