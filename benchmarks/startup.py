"""How long until the service is ready, with a full store, and what of that are imports?

The time is from the start of the process to the first 200 of /readyz. It is compared with a Python that does nothing
and one that imports the libraries that any such service needs. With a cluster there is an API server of 5,000 nodes on
the other core; `cluster/readiness.py` measures with a real one.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.cores import cores, pinned
from benchmarks.memory import fill_store, wait_until_known
from benchmarks.observed_process import observed_process
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine

QUESTION = "How long until the service is ready, and what of that are imports?"
IMAGES, NODES = 100_000, 5_000
SAMPLES = 5
MOST_SECONDS = 1.5
PROGRAMS = {
    "python, nothing": "pass",
    "python, aiohttp, msgspec and uvloop": "import aiohttp, msgspec, uvloop",
    "python, all that `serve` imports": "import extender.cli.serve",
    "the same, and what a kubeconfig needs": "import extender.cli.serve, extender.cluster.configuration as needed;"
    "needed.import_library(); from kubernetes_asyncio import client, config; client.Configuration()",
    "the same, all of kubernetes-asyncio": "import extender.cli.serve, kubernetes_asyncio",
}
ALONE, EMPTY, CLUSTER = "ready, no cluster", "ready, no cluster, empty store", "ready, cluster of many nodes"
KNOWN = "all images known, cluster of many nodes"


class Times(msgspec.Struct, frozen=True):
    """Seconds of each run."""

    name: str
    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.seconds)


def run(*, fewer: int = 1) -> Report:
    """Returns the report. It takes half a minute."""
    samples, images, nodes = max(SAMPLES // fewer, 1), max(IMAGES // fewer, 10), max(NODES // fewer, 1)
    core = cores()
    with tempfile.TemporaryDirectory() as scratch, quiet_cluster(core=core.load, nodes=nodes) as cluster:
        store = Path(scratch) / "images.sqlite"
        fill_store(store, images)
        settings = {"cluster": cluster.kubeconfig, "cache.url": f"sqlite:///{store}"}
        alone = {"cluster": "none", "cache.url": f"sqlite:///{store}"}
        empty = {"cluster": "none", "cache.url": "'memory:'"}
        with pinned(core.server):
            times = [_times(name, samples, partial(_run, program)) for name, program in PROGRAMS.items()]
        times.append(_times(EMPTY, samples, lambda: _ready(core.server, empty)))
        times.append(_times(ALONE, samples, lambda: _ready(core.server, alone)))
        times.append(_times(CLUSTER, samples, lambda: _ready(core.server, settings)))
        times.append(_times(KNOWN, samples, lambda: _known(core.server, settings, images)))
    return _report(times, images, nodes)


def _report(times: Sequence[Times], images: int, nodes: int) -> Report:
    by_name = {one.name: one.median for one in times}
    nothing, libraries = (by_name[name] for name in list(PROGRAMS)[:2])
    return Report(
        name="startup",
        question=QUESTION,
        tables=[
            Table(
                "Seconds from the start of the process",
                ["", "median", "least", "most"],
                [[one.name, one.median, min(one.seconds), max(one.seconds)] for one in times],
            )
        ],
        claims=[
            _ready_within(f"no cluster, {images:,} images in the store", by_name[ALONE]),
            _ready_within(f"a cluster of {nodes:,} nodes, {images:,} images", by_name[CLUSTER]),
            Claim(what="ready with a cluster over importing libraries", value=by_name[CLUSTER] / libraries),
            Claim(what="ready with a cluster over Python doing nothing", value=by_name[CLUSTER] / nothing),
        ],
        plots=[
            Plot(
                name="startup",
                title="Start of the service",
                x_label="",
                y_label="seconds",
                lines=[Line(one.name, [(0, one.median)]) for one in times],
                bars=True,
            )
        ],
        notes=[
            f"{len(times[0].seconds)} starts each; {images:,} images in a SQLite file, {nodes:,} nodes.",
            "Ready does not wait for the store longer than half a second; the rest comes in while it answers.",
        ],
        machine=this_machine(),
    )  # fmt: skip


def _ready_within(what: str, seconds: float) -> Claim:
    return Claim(what=f"ready, {what}", value=seconds, unit="s", at_most=MOST_SECONDS)


def _times(name: str, samples: int, measure: Callable[[], float]) -> Times:
    return Times(name, [measure() for _ in range(samples)])


def _run(program: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - started


def _ready(core: int, settings: Mapping[str, object]) -> float:
    with observed_process(core=core, settings=settings) as service:
        return service.ready_seconds


def _known(core: int, settings: Mapping[str, object], images: int) -> float:
    started = time.perf_counter()
    with observed_process(core=core, settings=settings) as service:
        wait_until_known(service, images)
        return time.perf_counter() - started
