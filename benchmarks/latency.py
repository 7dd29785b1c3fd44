"""How long does a warm answer take over loopback, and how much of that is the framework's own floor?

One process serves on one core, this one asks on another, one request at a time, as kube-scheduler does.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import payloads
from benchmarks.loopback import Connection, Measured, measure, request_bytes


class Question(msgspec.Struct, frozen=True):
    """A kind of request, and the median in milliseconds that a prototype reached on two shared cores, if known."""

    name: str
    path: str
    body: bytes
    samples: int
    mark_p50: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """A question's figures beside those of the floor for the same body."""

    question: Question
    measured: Measured
    floor: Measured


def questions(registry: str) -> list[Question]:
    """Every verb at the sizes that matter."""
    multi = (f"{registry}/bench/multi:1", f"{registry}/bench/sidecar:1")
    single = (f"{registry}/bench/single:1",)
    by_names, by_nodes = payloads.by_names, payloads.by_nodes
    return [
        Question("filter, 500 names, none refused", "/scheduler/filter", by_names(multi, 500), 3000),
        Question("filter, 500 names, half refused", "/scheduler/filter", by_names(single, 500), 3000),
        Question("filter, 5,000 names, none refused", "/scheduler/filter", by_names(multi, 5000), 2000, 0.27),
        Question("filter, 5,000 names, half refused", "/scheduler/filter", by_names(single, 5000), 2000),
        Question("filter, 1,000 whole nodes, none refused", "/scheduler/filter", by_nodes(multi, 1000), 60, 30.0),
        Question("filter, 1,000 whole nodes, half refused", "/scheduler/filter", by_nodes(single, 1000), 60),
        Question("prioritize, 5,000 names", "/scheduler/prioritize", by_names(multi, 5000), 2000),
        Question("webhook, 2 containers, patched", "/admission/pods", payloads.review(multi), 5000),
        Question("webhook, 1 container, unpatched", "/admission/pods", payloads.review(single), 5000),
    ]


@contextmanager
def served(kind: str, core: int) -> Iterator[dict[str, str]]:
    """A server process on `core` and its addresses; ended at the end."""
    command = [sys.executable, "-m", "benchmarks.served", kind, str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield msgspec.json.decode(process.stdout.readline(), type=dict[str, str])
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def ask(url: str, question: Question, *, fewer: int = 1) -> Measured:
    """The question asked of the server at `url`, with `1/fewer` of its samples."""
    host, port = url.removeprefix("http://").split(":")
    connection = Connection(host, int(port))
    samples = max(question.samples // fewer, 20)
    try:
        return measure(
            connection, request_bytes(question.path, question.body), samples=samples, warm_up=samples // 10 + 3
        )
    finally:
        connection.close()


def run(*, fewer: int = 1) -> list[Answer]:
    """Every question's figures; progress on standard error. The first core serves, the last one asks."""
    cores = sorted(os.sched_getaffinity(0))
    answers = []
    with (
        served("service", cores[0]) as service,
        served("floor", cores[0]) as floor,
        Progress(console=Console(stderr=True)) as bar,
    ):
        os.sched_setaffinity(0, {cores[-1]})
        asked = questions(service["registry"])
        for question in bar.track(asked, description="latency"):
            base = service["admission" if "admission" in question.path else "scheduler"]
            answers.append(
                Answer(question, ask(base, question, fewer=fewer), ask(floor["floor"], question, fewer=fewer))
            )
    os.sched_setaffinity(0, cores)
    return answers


def table_of(answers: list[Answer]) -> Table:
    """The figures; `× floor` is our median over that of aiohttp reading the same body and answering two bytes."""
    table = Table(
        "warm, one connection",
        "p50 ms",
        "p99 ms",
        "× floor",
        "mark p50",
        "answer bytes",
        "samples",
        box=None,
        pad_edge=False,
    )
    for answer in answers:
        mark = answer.question.mark_p50
        table.add_row(
            answer.question.name,
            f"{answer.measured.p50:.3f}",
            f"{answer.measured.p99:.3f}",
            f"{answer.measured.p50 / answer.floor.p50:.2f}",
            "" if mark is None else f"{mark:g}",
            f"{answer.measured.answer_bytes:,}",
            f"{answer.measured.samples:,}",
        )
    return table
