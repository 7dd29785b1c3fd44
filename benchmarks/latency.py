"""How long does a warm answer of the scheduler verbs take, against a typed Go extender?

kube-scheduler sends one request at a time, so there is one connection. All servers share one core and are measured in
turns; the load comes from another core. `null Go` decodes nothing and refuses nothing, which is the limit of the
protocol.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from benchmarks import payloads
from benchmarks.contenders import NULL, OURS, TYPED, Contenders, contenders
from benchmarks.cores import cores
from benchmarks.report import Cell, Claim, Report, Table, this_machine
from benchmarks.wrk import Load, take_turns

QUESTION = "How long does a warm answer of the scheduler verbs take, against a typed Go extender?"
SECONDS, ROUNDS = 2.0, 3
FILTER, PRIORITIZE = "/scheduler/filter", "/scheduler/prioritize"
CONTENDERS = (OURS, TYPED, NULL)
FIGURES: Mapping[str, Callable[[Load], float]] = {
    "p50 in milliseconds, warm, one connection": lambda load: load.p50,
    "p99 in milliseconds, warm, one connection": lambda load: load.p99,
    "microseconds of CPU of one answer": lambda load: load.cpu_microseconds,
    "answers measured": lambda load: load.requests,
}


class Row(msgspec.Struct, frozen=True):
    """A kind of request: `half` of the nodes are refused, or none; `whole` nodes, or their names."""

    path: str
    nodes: int
    half: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """The row's name in the table."""
        nodes = f"{self.nodes:,} {'whole nodes' if self.whole else 'names'}"
        refused = f", {'half' if self.half else 'none'} refused" if self.path == FILTER else ""
        return f"{self.path.rpartition('/')[2]}, {nodes}{refused}"

    def body(self, images: Contenders) -> bytes:
        """Returns the body of the request.

        Rows of other images have another pod, since the first call for a pod alone waits for lookups.
        """
        build = payloads.by_nodes if self.whole else payloads.by_names
        if self.half:
            return build(images.single, self.nodes, serial=payloads.SECOND)
        return build(images.multi, self.nodes)


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
    with contenders(nodes=max(few, many, whole)) as running:
        answers = [_measure(row, running, fewer) for row in rows]
        machine = this_machine(go=running.go_version)
    few_none, few_half, many_none, many_half, whole_none, whole_half = answers[:6]
    return Report(
        name="latency",
        question=QUESTION,
        tables=list(_tables(answers)),
        claims=[
            _faster(few_none, 1.6),
            _faster(few_half, 1.6),
            _faster(many_none, 5),
            _faster(many_half, 3),
            _faster(whole_none, 6, aim=8),
            _faster(whole_half),
            _slowest(many_none),
            _slowest(many_half),
            _per_name(few_none, many_none),
        ],
        notes=[
            f"one connection; {max(ROUNDS // fewer, 1)} turns of {SECONDS / fewer:g} s, whole nodes twice as long",
            "every answer a 200; ours and the typed Go extender agree on every node of every row",
            "latencies as they were seen by a client that waits for each answer, as kube-scheduler does",
        ],
        machine=machine,
    )


def _measure(row: Row, running: Contenders, fewer: int) -> Answer:
    body = row.body(running)
    running.check(row.path, body)
    loads = take_turns(
        running.targets(row.path, body),
        connections=1,
        seconds=SECONDS / fewer * (2 if row.whole else 1),
        rounds=max(ROUNDS // fewer, 1),
        core=cores().load,
    )
    return Answer(row, loads)


def _tables(answers: list[Answer]) -> Iterator[Table]:
    for title, figure in FIGURES.items():
        rows: list[list[Cell]] = [
            [answer.row.name, *(figure(answer.loads[name]) for name in CONTENDERS)] for answer in answers
        ]
        yield Table(title, ["", *CONTENDERS], rows)
    yield Table("p50 of typed Go / ours", ["", "×"], [[answer.row.name, answer.times_faster] for answer in answers])


def _faster(answer: Answer, at_least: float | None = None, aim: float | None = None) -> Claim:
    aimed = f" (aim: {aim:g})" if aim else ""
    return Claim(what=f"{answer.row.name}: p50 of typed Go / ours{aimed}", value=answer.times_faster, at_least=at_least)


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
