"""How long does an audit take, and how much memory?

The command is run as a user runs it, in its own process: 1,000 images at a registry 50 ms away, cold and again from
the cache; and a cluster of 20,000 pods whose images are in the cache.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.cores import cores
from benchmarks.far_registry import FarRegistry, far_registry
from benchmarks.loopback import UnexpectedStatus
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.report import Claim, Report, Table, this_machine
from extender.reports.audit_report import Audit

QUESTION = "How long does an audit take, and how much memory?"
IMAGES, PODS, NODES, DELAY_SECONDS = 1_000, 20_000, 200, 0.05
MOST_COLD_SECONDS, MOST_WARM_SECONDS, MOST_MB = 10.0, 30.0, 150.0


class Audited(msgspec.Struct, frozen=True):
    """One run: how long it took with its start, the most memory it held, and what it asked of the registry."""

    name: str
    seconds: float
    megabytes: float
    requests: int
    most_at_a_host: int


def run(*, fewer: int = 1) -> Report:
    """Returns the report. It takes a minute."""
    images, pods = max(IMAGES // fewer, 20), max(PODS // fewer, 40)
    core = cores()
    with far_registry(core=core.load, delay_seconds=DELAY_SECONDS) as registry, tempfile.TemporaryDirectory() as folder:
        measured = [
            *_lists(registry, registry.hosts[:1], images, Path(folder), "one host"),
            *_lists(registry, registry.hosts[:4], images, Path(folder), "four hosts"),
            _cluster(registry, registry.hosts[:4], (pods, images), Path(folder), core.load),
        ]
    by_name = {each.name: each for each in measured}
    cold, cluster = by_name[f"{images} images, one host, cold"], measured[-1]
    return Report(
        name="audit",
        question=QUESTION,
        tables=[
            Table(
                "an audit as a process, with its start",
                ["", "seconds", "most memory, MB", "requests", "most at a host at once"],
                [[each.name, each.seconds, each.megabytes, each.requests, each.most_at_a_host] for each in measured],
            )
        ],
        claims=[
            Claim(what=cold.name, value=cold.seconds, unit="s", at_most=MOST_COLD_SECONDS),
            Claim(what=cluster.name, value=cluster.seconds, unit="s", at_most=MOST_WARM_SECONDS),
            Claim(what="most memory", value=max(each.megabytes for each in measured), unit="MB", at_most=MOST_MB),
        ],
        notes=[f"Each answer of the registry takes {DELAY_SECONDS * 1000:g} ms; 16 lookups are under way there."],
        machine=this_machine(),
    )


def _lists(registry: FarRegistry, hosts: Sequence[str], images: int, folder: Path, where: str) -> list[Audited]:
    """Audits a list of images twice: with an empty cache, and with what the first run has left there."""
    names = [f"{hosts[index % len(hosts)]}/team/app-{index}:1.0" for index in range(images)]
    file = folder / f"{len(hosts)}.txt"
    file.write_text("\n".join(names))
    cache = folder / f"{len(hosts)}.sqlite"
    return [
        _audit(registry, f"{images} images, {where}, {state}", ["--images", str(file)], cache, images)
        for state in ("cold", "warm")
    ]


def _cluster(registry: FarRegistry, hosts: Sequence[str], sizes: tuple[int, int], folder: Path, core: int) -> Audited:
    """Audits a cluster whose images the cache of the run before has."""
    pods, images = sizes
    program = "benchmarks.listed_cluster"
    with quiet_cluster(core=core, nodes=NODES, program=program, more=(pods, images, *hosts)) as cluster:
        cache = folder / f"{len(hosts)}.sqlite"
        return _audit(registry, f"{pods} pods, warm", ["--kubeconfig", str(cluster.kubeconfig)], cache, 1)


def _audit(registry: FarRegistry, name: str, source: Sequence[str], cache: Path, at_least: int) -> Audited:
    hosts = list(registry.hosts)
    settings = (
        f"registry.plain_http={hosts}", f"registry.allow={['*', *hosts]}", f"cache.url='sqlite:///{cache}'"
    )  # fmt: skip
    line = [sys.executable, "-m", "extender", "audit", *source, "-o", "json", "--no-newer"]
    registry.forget()
    started = time.monotonic()
    process = subprocess.Popen(
        [*line, *(part for setting in settings for part in ("--set", setting))], stdout=subprocess.PIPE
    )
    assert process.stdout
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    report = msgspec.json.decode(out, type=Audit) if process.returncode == 0 else None
    if report is None or len(report.images) < at_least or any(image.state != "known" for image in report.images):
        raise UnexpectedStatus(f"{name}: the audit ended with {process.returncode} or did not find its images")
    counts = registry.counts()
    return Audited(
        name, round(seconds, 2), round(_megabytes(usage), 1), sum(counts.requests.values()),
        max(counts.peak_in_flight.values(), default=0),
    )  # fmt: skip


def _megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / 1000
