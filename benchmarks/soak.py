"""Does a million requests leave anything behind: memory, file descriptors, connections, tasks, errors in the log?

The service runs as users start it, in a cluster of 5,000 nodes and with a registry of 2,000 images, some of which are
missing or fail. Requests come over keep-alive connections, one at a time on each, which are closed and reopened now and
then: filter with 500 and 5,000 names and with whole nodes, prioritize, preempt, the webhook, and invalid requests. Pods
have new names and uids each time. `make soak` sends a million requests, in some minutes.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.cores import cores, pinned
from benchmarks.far_registry import far_registry
from benchmarks.observed_process import ObservedProcess, ProcessFigures, observed_process
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.report import Claim, Report, Table, print_report, this_machine
from benchmarks.soak_requests import FEW_NODES, MIX, NONSENSE, Asker, Questions

QUESTION = "Does a million requests leave anything behind?"
REQUESTS = 1_000_000
NODES, IMAGES = 5_000, 2_000
CONNECTIONS = 8
LOOKS = 50  # of the process, evenly over the requests
RECONNECT = 0.001  # of the requests: the connection is closed after them
MOST_GROWTH = 1.05
SETTLE_SECONDS = 30.0  # a connection to a registry is kept open for 15 seconds
REJECTED = ("warning", "request.rejected")
SETTINGS = {"scheduler.pending": "pass"}
UNRESOLVED = ("warning", "pod.admitted_unresolved")  # of images that are not there


class Look(msgspec.Struct, frozen=True):
    """The process after so many requests, and the number of lookups under way."""

    requests: int
    process: ProcessFigures
    in_flight: float


class Soaked(msgspec.Struct, frozen=True, kw_only=True):
    """The requests, their results, and the process's figures over the run."""

    seconds: float
    requested: Mapping[str, int]
    wrong: Mapping[str, int]
    reconnects: int
    looks: Sequence[Look]
    idle: Look
    events: Mapping[tuple[str, str], int]


def run(*, fewer: int = 1, requests: int = REQUESTS, settle_seconds: float = SETTLE_SECONDS) -> Report:
    """Returns the report. A million requests take some minutes; resources then have `settle_seconds` to be released."""
    core, requests = cores(), max(requests // fewer, 20 * CONNECTIONS)
    nodes, images = max(NODES // fewer, 2 * FEW_NODES), max(IMAGES // fewer, 20)
    with (
        far_registry(core=core.load, delay_seconds=0.02) as registry,
        quiet_cluster(core=core.load, nodes=nodes) as cluster,
        observed_process(core=core.server, cluster=cluster, registry=registry, settings=SETTINGS) as service,
        pinned(core.load),
    ):
        questions = Questions(registry.hosts, nodes=nodes, images=images)
        return _report(_soak(service, questions, requests, settle_seconds))


def _soak(service: ObservedProcess, questions: Questions, requests: int, settle_seconds: float) -> Soaked:
    """Sends so many requests, one at a time on each connection.

    Checks each answer, and looks at the process at intervals.
    """
    chance = random.Random(2)
    askers = [Asker(service.addresses) for _ in range(CONNECTIONS)]
    requested, wrong, reconnects = Counter[str](), Counter[str](), 0
    begin = _look(service, 0)
    looks, every = [begin], max(requests // LOOKS, 1)
    started = time.perf_counter()
    for number in _counted(requests):
        asker = askers[number % CONNECTIONS]
        if number >= CONNECTIONS:
            wrong[asker.read(checked=questions.is_checked())] += 1
            if chance.random() < RECONNECT:
                reconnects += 1
                asker.hang_up()
        question = questions.draw(number)
        requested[question.kind] += 1
        asker.ask(question)
        if number % every == every - 1:
            looks.append(_look(service, number + 1))
    for asker in askers:
        wrong[asker.read(checked=True)] += 1
    seconds = time.perf_counter() - started
    for asker in askers:
        asker.hang_up()
    del wrong[""]
    idle = _settled(service, begin, settle_seconds)
    return Soaked(
        seconds=seconds,
        requested=requested,
        wrong=wrong,
        reconnects=reconnects,
        looks=looks,
        idle=idle,
        events=service.events,
    )


def _look(service: ObservedProcess, requests: int) -> Look:
    return Look(requests, service.look(), service.metric('multiarch_images{state="in_flight"}'))


def _settled(service: ObservedProcess, begin: Look, most_seconds: float) -> Look:
    """Looks at the process once it has as few files as at first and no lookups, or after `most_seconds`."""
    deadline = time.monotonic() + most_seconds
    while True:
        idle = _look(service, 0)
        if time.monotonic() > deadline or (idle.process.files <= begin.process.files and not idle.in_flight):
            return idle
        time.sleep(0.2)


def _report(soaked: Soaked) -> Report:
    return Report(
        name="soak",
        question=QUESTION,
        tables=[
            Table(
                "The process, by requests asked",
                ["requests", "MB resident", "threads", "file descriptors", "sockets", "lookups under way"],
                [_row(f"{look.requests:,}", look) for look in _spread(soaked.looks)]
                + [_row("all hung up", soaked.idle)],
            ),
            Table("What was asked", ["kind", "requests"], [[kind, soaked.requested.get(kind, 0)] for kind in MIX]),
            Table(
                "What was logged",
                ["event", "times"],
                [[" ".join(event), count] for event, count in sorted(soaked.events.items())],
            ),
        ],
        claims=_claims(soaked),
        notes=[
            f"{CONNECTIONS} connections to each listener, of which {soaked.reconnects} hung up and came again.",
            "Sockets beyond those are the registry's and the API server's. Tags were fresh for a minute.",
            *(f"{count} times {fault}" for fault, count in soaked.wrong.items()),
        ],
        machine=this_machine(),
    )


def _claims(soaked: Soaked) -> list[Claim]:
    """Returns claims about requests, processor time and memory, then one for each thing that must not be left over."""
    begin, last, tenth = soaked.looks[0].process, soaked.looks[-1].process, _after_a_tenth(soaked.looks).process
    total = sum(soaked.requested.values())
    nonsense = sum(soaked.requested.get(kind, 0) for kind in NONSENSE)
    complaints = sum(count for (level, _), count in soaked.events.items() if level not in ("debug", "info"))
    left_over = {
        "answers that were not right": sum(soaked.wrong.values()),
        "file descriptors": soaked.idle.process.files - begin.files,
        "connections": soaked.idle.process.sockets - begin.sockets,
        "lookups under way": soaked.idle.in_flight,
        "requests that were none and not logged": abs(nonsense - soaked.events.get(REJECTED, 0)),
        "other warnings and errors logged": complaints
        - sum(soaked.events.get(each, 0) for each in (REJECTED, UNRESOLVED)),
    }
    return [
        Claim(what="requests", value=total, unit=""),
        Claim(what="requests a second, each answer checked", value=total / soaked.seconds, unit="/s"),
        Claim(what="of a core", value=(last.cpu_seconds - begin.cpu_seconds) / soaked.seconds, unit=""),
        Claim(what="memory at the end over after a tenth", value=last.megabytes / tenth.megabytes, at_most=MOST_GROWTH),
        *(Claim(what=what, value=count, unit="", at_most=0) for what, count in left_over.items()),
    ]


def _after_a_tenth(looks: Sequence[Look]) -> Look:
    return next(look for look in looks if look.requests >= looks[-1].requests / 10)


def _spread(looks: Sequence[Look]) -> Sequence[Look]:
    """Returns about ten of the looks, with the first and the last."""
    return [*looks[:-1][:: max(len(looks) // 10, 1)], looks[-1]]


def _row(name: str, look: Look) -> list[str | int | float]:
    process = look.process
    return [name, process.megabytes, process.threads, process.files, process.sockets, int(look.in_flight)]


def _counted(requests: int) -> Iterator[int]:
    """Yields 0, 1, 2 …, with a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[rate]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=requests, rate="")
        started = time.perf_counter()
        for number in range(requests):
            yield number
            if number % 1000 == 999:
                rate = f"{number / (time.perf_counter() - started):,.0f} requests/s"
                progress.update(task, completed=number + 1, rate=rate)


if __name__ == "__main__":
    print_report(Console(width=160), run())
