"""What does a warm answer of the scheduler verbs cost, beside Go?

kube-scheduler sends one request at a time, so there is one connection. All servers share one core and are measured in
turns; the load comes from another core. Each request is about another pod, as in a cluster: 256 pods of 64 templates
(1 and 1,000 too), which differ in name, uid and token volume, templates in their app's image, and requests in the
window of nodes. `null Go` decodes nothing and refuses nothing, which is the limit of the protocol.
"""

import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

from benchmarks import payloads
from benchmarks.contenders import MOST_TEMPLATES, NULL, OURS, TYPED, Contenders, contenders, of_template
from benchmarks.cores import cores
from benchmarks.report import Cell, Claim, Report, Table, this_machine
from benchmarks.wrk import Load, take_turns

QUESTION = "What does a call of the scheduler verbs cost beside Go?"
SECONDS, ROUNDS = 2.0, 3
PODS, TEMPLATES = 256, 64
WHOLE_PODS = 8  # a request of 1,000 whole nodes has 11 MB
CHECKED = 4  # of the bodies of a row: whether the answers agree
FILTER, PRIORITIZE = "/scheduler/filter", "/scheduler/prioritize"
CONTENDERS = (OURS, TYPED, NULL)
FIGURES: Mapping[str, Callable[[Load], float]] = {
    "p50 in milliseconds": lambda load: load.p50,
    "p99 in milliseconds": lambda load: load.p99,
    "microseconds of CPU of one answer": lambda load: load.cpu_microseconds,
    "answers measured": lambda load: load.requests,
}


class Row(msgspec.Struct, frozen=True):
    """A kind of request: `half` of the nodes are refused, or none; `whole` nodes, or their names."""

    path: str
    nodes: int
    half: bool = False
    whole: bool = False
    templates: int = TEMPLATES

    @property
    def name(self) -> str:
        """The row's name in the table."""
        nodes = f"{self.nodes:,} {'whole nodes' if self.whole else 'names'}"
        refused = f", {'half' if self.half else 'none'} refused" if self.path == FILTER else ""
        templates = f", {self.templates:,} template{'s'[: self.templates - 1]}" if self.templates != TEMPLATES else ""
        return f"{self.path.rpartition('/')[2]}, {nodes}{refused}{templates}"

    def bodies(self, images: Contenders, cluster: int) -> list[bytes]:
        """Returns the bodies of the requests, in a cluster of so many nodes.

        Rows of other images have other pods, since the first call for a pod alone waits for lookups.
        """
        build, chosen = (payloads.by_nodes if self.whole else payloads.by_names), random.Random(1)
        return [
            build(
                payloads.pod(
                    of_template(images.single if self.half else images.multi, number % self.templates),
                    serial=f"{number + self.half * MOST_TEMPLATES:08}",
                    template=f"{number % self.templates:08}",
                ),
                payloads.Window(self.nodes, chosen.randrange(cluster), cluster),
            )
            for number in range(WHOLE_PODS if self.whole else max(PODS, self.templates))
        ]


class Answer(msgspec.Struct, frozen=True):
    """A row's figures by contender."""

    row: Row
    loads: Mapping[str, Load]

    @property
    def times_faster(self) -> float:
        """The typed Go extender's median latency divided by ours."""
        return self.loads[TYPED].p50 / self.loads[OURS].p50


def run(*, fewer: int = 1, few: int = 500, many: int = 5_000, whole: int = 1_000) -> Report:
    """Returns the report; `few` and `many` are numbers of names, `whole` is the number of whole nodes."""
    rows = [Row(FILTER, nodes, half) for nodes in (few, many) for half in (False, True)]
    rows += [Row(FILTER, whole, half, whole=True) for half in (False, True)]
    rows += [Row(PRIORITIZE, nodes) for nodes in (few, many)]
    rows += [Row(FILTER, few, half, templates=number) for number in (1, MOST_TEMPLATES) for half in (False, True)]
    cluster = max(few, many, whole)
    with contenders(nodes=cluster) as running:
        answers = [_measure(row, running, cluster, fewer) for row in rows]
        machine = this_machine(go=running.go_version)
    few_none, few_half, many_none, many_half, whole_none, whole_half = answers[:6]
    return Report(
        name="latency",
        question=QUESTION,
        tables=[_beside(answers), *_tables(answers)],
        claims=[
            _faster(few_none, 1.6),
            _faster(few_half, 1.6),
            _faster(many_none, 5),
            _faster(many_half, 3),
            _faster(whole_none, 3),
            _faster(whole_half),
            _slowest(many_none),
            _slowest(many_half),
            _per_name(few_none, many_none),
        ],
        notes=[
            f"one connection; {max(ROUNDS // fewer, 1)} turns of {SECONDS / fewer:g} s, whole nodes twice as long",
            f"{PODS} pods of {TEMPLATES} templates, each in another window of {cluster:,} nodes;",
            f"  {WHOLE_PODS} pods where whole nodes are sent, one of each template where there are {MOST_TEMPLATES:,}",
            "every answer a 200; ours and the typed Go extender agree on every node of every row",
            "latencies as they were seen by a client that waits for each answer, as kube-scheduler does",
        ],
        machine=machine,
    )


def _measure(row: Row, running: Contenders, cluster: int, fewer: int) -> Answer:
    bodies = row.bodies(running, cluster)
    for body in bodies[:: max(len(bodies) // CHECKED, 1)]:
        running.check(row.path, body)
    loads = take_turns(
        running.targets(row.path, bodies),
        connections=1,
        seconds=SECONDS / fewer * (2 if row.whole else 1),
        rounds=max(ROUNDS // fewer, 1),
        core=cores().load,
    )
    return Answer(row, loads)


def _beside(answers: list[Answer]) -> Table:
    """Returns the table of docs/speed.md."""
    columns = ["call", "ours ms", "typed Go ms", "typed / ours", "null Go ms", "our CPU µs", "typed Go's"]
    rows: list[list[Cell]] = []
    for answer in answers:
        ours, typed, null = (answer.loads[name] for name in CONTENDERS)
        cpu = [load.cpu_microseconds for load in (ours, typed)]
        rows.append([answer.row.name, ours.p50, typed.p50, answer.times_faster, null.p50, *cpu])
    return Table("What does a call cost beside Go? p50, warm, one connection", columns, rows)


def _tables(answers: list[Answer]) -> Iterator[Table]:
    for title, figure in FIGURES.items():
        rows: list[list[Cell]] = [
            [answer.row.name, *(figure(answer.loads[name]) for name in CONTENDERS)] for answer in answers
        ]
        yield Table(title, ["", *CONTENDERS], rows)


def _faster(answer: Answer, at_least: float | None = None) -> Claim:
    return Claim(what=f"{answer.row.name}: p50 of typed Go / ours", value=answer.times_faster, at_least=at_least)


def _slowest(answer: Answer) -> Claim:
    return Claim(what=f"{answer.row.name}: our p99", value=answer.loads[OURS].p99, unit="ms", at_most=1.5)


def _per_name(few: Answer, many: Answer) -> Claim:
    """Returns the cost of each further name when nothing is refused.

    The request is longer by the name, which is not looked at.
    """
    milliseconds = many.loads[OURS].p50 - few.loads[OURS].p50
    names = many.row.nodes - few.row.nodes
    return Claim(
        what="each further name when nothing is refused", value=milliseconds * 1000 / names, unit="µs", at_most=0.06
    )
