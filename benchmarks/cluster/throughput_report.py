"""The report of the throughput benchmark: a table per number of nodes, and the claims.

This module is pure.
"""

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.cluster.measurements import Measurement, Summary, summarize
from benchmarks.cluster.variants import Pods
from benchmarks.report import Cell, Claim, Machine, Report, Table

NAME = "throughput"
QUESTION = "How many pods a second does a real kube-scheduler place, with and without an extender?"
ALONE = "none"
"""The variant that asks nobody."""
COLUMNS = ("asked", "pods/s", "slowest", "fastest", "created/s", "pods", "rounds")


class Comparison(msgspec.Struct, frozen=True):
    """The ratio of a variant's pods a second to another's in the same round, and its lower bound, if it has one.

    `pods` says which pods it is about.
    """

    variant: str
    over: str
    at_least: float | None
    pods: Pods


COMPARISONS = (
    Comparison("ours", "null", 0.85, Pods.MULTI),
    Comparison("ours", "typed", 1.1, Pods.MULTI),
    Comparison("ours single", "null single", 0.85, Pods.SINGLE),
    Comparison("ours single", "typed single", 1.1, Pods.SINGLE),
    # kube-scheduler decodes scores with reflection, whichever extender returns them; `null` returns none.
    Comparison("ours", "null scoring", 0.85, Pods.MULTI),
    # A preference by filter leaves kube-scheduler fewer nodes to score, and needs no second call.
    Comparison("ours strict", "null", 1.05, Pods.MULTI),
    Comparison("webhook preferred", "none", 0.97, Pods.MULTI),
    Comparison("webhook required", "none", 0.97, Pods.MULTI),
    # Pods that have the same fields already: kube-scheduler's own cost of them.
    Comparison("webhook required", "affinity by hand", 0.97, Pods.MULTI),
)


def report_of(measurements: Sequence[Measurement], machine: Machine, notes: Sequence[str]) -> Report:
    """Returns tables and claims for every number of nodes measured."""
    by_nodes: dict[int, list[Summary]] = {}
    for summary in summarize(measurements):
        by_nodes.setdefault(summary.nodes, []).append(summary)
    return Report(
        name=NAME,
        question=QUESTION,
        tables=[
            *(
                Table(f"{nodes:,} nodes", COLUMNS, [_row(each) for each in summaries])
                for nodes, summaries in by_nodes.items()
            ),
            *(_loss(nodes, summaries) for nodes, summaries in by_nodes.items()),
        ],
        claims=[claim for nodes, summaries in by_nodes.items() for claim in claims_of(nodes, summaries)],
        notes=[*notes, *_unsteady(measurements)],
        machine=machine,
    )


def claims_of(nodes: int, summaries: Sequence[Summary]) -> Iterator[Claim]:
    """Yields a claim for each comparison of which both variants were measured."""
    found = {summary.variant: summary for summary in summaries}
    for each in COMPARISONS:
        if {each.variant, each.over} <= found.keys():
            what = f"{nodes:,} nodes, {each.pods} pods: pods/s of {each.variant} / {each.over}"
            yield Claim(what=what, value=found[each.variant].over(found[each.over]), at_least=each.at_least)


def _loss(nodes: int, summaries: Sequence[Summary]) -> Table:
    """Returns the table of docs/speed.md: each variant's pods a second over those of a cluster without an extender."""
    [*without] = [each for each in summaries if each.variant == ALONE]
    rows: list[list[Cell]] = [
        [each.variant, each.pods_per_second, *(each.over(alone) for alone in without)] for each in summaries
    ]
    columns = ["asked", "pods/s", *(f"/ {alone.variant}" for alone in without)]
    return Table(f"What does a cluster lose? {nodes:,} nodes", columns, rows)


def _row(found: Summary) -> list[Cell]:
    paces: list[Cell] = [found.pods_per_second, min(found.paces), max(found.paces)]
    return [found.variant, *paces, found.created_per_second, found.pods, len(found.paces)]


def _unsteady(measurements: Sequence[Measurement]) -> list[str]:
    found = dict.fromkeys(f"{each.variant} ({each.nodes:,})" for each in measurements if not each.pace.is_steady)
    return [f"too short a run, so that starting counts (a lower bound): {', '.join(found)}"] if found else []
