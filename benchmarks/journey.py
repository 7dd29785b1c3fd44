"""Through how many files and functions of the package does a call go, in the service and in its fetcher?

Warm and cold filter calls, warm reviews and removals of gates are traced in the real processes. Each is made several
times, and what all of them cross is counted, without what else the service does meanwhile. A function counts once
however often it is called; modules, lambdas and comprehensions do not count.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

from benchmarks import payloads
from benchmarks.cores import cores
from benchmarks.far_registry import far_registry
from benchmarks.gated_cluster import HELD
from benchmarks.loopback import ask_once
from benchmarks.observed_process import observed_process
from benchmarks.quiet_cluster import quiet_cluster

TIMES, NODES, DELAY_SECONDS = 5, 100, 0.005
WARM, COLD, REVIEW, RELEASE = "warm filter", "cold filter", "warm review", "gate removed"
SERVICE, FETCHER = "service", "fetcher"
_PAUSE_SECONDS = 0.25  # before a call, in which what the one before it left to do comes to its end
# Python imports it before the program, in each process that finds it on its path. It writes down the calls of
# the thread that the event loop runs in; the fetcher watches its size in another, all the time.
_TRACER = """
import os, sys, time
def trace(frame, event, _):
    code = frame.f_code
    if event == "call" and "/extender/" in code.co_filename and not code.co_name.startswith("<"):
        file = code.co_filename.rpartition("/extender/")[2]
        os.write(log, f"{time.monotonic()}\\t{file}\\t{code.co_qualname}\\n".encode())
if {"extender", "extender.fetcher"} & set(sys.orig_argv):
    who = "fetcher" if "extender.fetcher" in sys.orig_argv else "service"
    path = os.path.join(os.path.dirname(__file__), f"{who}.{os.getpid()}")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.setprofile(trace)
"""


class Function(NamedTuple):
    """A function of the package, and the process that it ran in: `SERVICE` or `FETCHER`."""

    process: str
    file: str
    name: str


class Traced(NamedTuple):
    """When a call was made, and when its answer had come."""

    began: float
    ended: float


def crossed_functions(times: int = TIMES) -> Mapping[str, Sequence[Function]]:
    """Returns what each call of a journey crosses, in the order in which it is first called; `times` calls are made."""
    core = cores()
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_cluster(core=core.load, nodes=NODES) as cluster,
        quiet_cluster(core=core.load, nodes=NODES, program="benchmarks.gated_cluster") as gated,
        far_registry(core=core.load, delay_seconds=DELAY_SECONDS) as registry,
    ):
        (Path(folder) / "sitecustomize.py").write_text(_TRACER)
        settings = {"scheduler.wait_seconds": 10}
        gating = {"admission.unknown": "gate", "admission.node_affinity": "required"}
        # The first of each is not counted: it fills tables. Each image is at a host of its own.
        images = [f"{host}/team/app:1" for host in registry.hosts[: times + 1]]
        with patch.dict(os.environ, {"PYTHONPATH": folder}):
            with observed_process(core=core.server, cluster=cluster, registry=registry, settings=settings) as service:
                filtering = f"http://{service.addresses['scheduler']}/scheduler/filter"
                reviewing = f"http://{service.addresses['admission']}/admission/pods"
                filters = [payloads.by_names(payloads.pod((image,)), payloads.Window(NODES)) for image in images]
                calls = {
                    COLD: [_traced(filtering, body) for body in filters][1:],
                    WARM: [_traced(filtering, body) for body in filters][1:],
                    REVIEW: [_traced(reviewing, payloads.review((image,))) for image in images][1:],
                }
            with observed_process(core=core.server, cluster=gated, registry=registry, settings=gating):
                pods = [payloads.held_pod(image, f"{number:08}") for number, image in enumerate(images)]
                calls[RELEASE] = [_traced(f"{gated.url}{HELD}", pod) for pod in pods][1:]
        log = sorted(_read_log(Path(folder)))
    return {name: _crossed(log, calls[name]) for name in (WARM, COLD, REVIEW, RELEASE)}


def _traced(url: str, body: bytes) -> Traced:
    time.sleep(_PAUSE_SECONDS)
    began = time.monotonic()
    ask_once(url, body)
    return Traced(began, time.monotonic())


def _read_log(folder: Path) -> Iterator[tuple[float, Function]]:
    """Yields the calls of all processes, each with its time on the machine's monotonic clock."""
    for path in (*folder.glob(f"{SERVICE}.*"), *folder.glob(f"{FETCHER}.*")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line, of a process that was killed
                at, file, name = line.split("\t")
                yield float(at), Function(path.stem, file, name)


def _crossed(log: Sequence[tuple[float, Function]], calls: Sequence[Traced]) -> list[Function]:
    """Returns the functions that ran in every one of these calls, in the order of most calls."""
    each_call = [dict.fromkeys(each for at, each in log if call.began <= at <= call.ended) for call in calls]
    common = set.intersection(*map(set, each_call))
    ranks = [{each: rank for rank, each in enumerate(filter(common.__contains__, crossed))} for crossed in each_call]
    return sorted(common, key=lambda each: (median(rank[each] for rank in ranks), each))
