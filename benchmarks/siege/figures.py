"""The figures of each phase of a siege, and the marks that they are judged by."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.report import Cell
from benchmarks.siege.tenants import PodRecord

KNOWN_IN_SECONDS = 30.0
REVIEW_RATIO = "× quiet"
MARKS = {  # the bound of each column; known in time is the least, others are the most
    "known %": 99.0,
    "wrong": 0.0,
    "lost": 0.0,
    REVIEW_RATIO: 3.0,
    "filter p99 ms": 20.0,
    "service MB": 200.0,
    "both MB": 450.0,
    "hold ms": 50.0,
}
COLUMNS = [
    *("phase", "pods", "known %", "p50 s", "p95 s", "wrong", "lost", "review p99 ms", REVIEW_RATIO, "filter p99 ms"),
    *("service MB", "both MB", "hold ms", "/livez ms", "service cores", "children cores", "ended", "late p99 ms"),
]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in one phase: the honest pods of it, and what the watch and the attackers have noted.

    `counts` is what the attackers' requests came to, `killed` how many fetchers were killed.
    """

    words: str
    seconds: float
    pods: Sequence[PodRecord]
    megabytes: float = 0.0
    both_megabytes: float = 0.0
    hold_seconds: float = 0.0
    livez_seconds: float = 0.0
    service_seconds: float = 0.0
    children_seconds: float = 0.0
    deaths: int = 0
    killed: int = 0
    counts: Mapping[str, int] = {}

    @property
    def review_p99_ms(self) -> float:
        """That of all reviews; one that was not answered took as long as its caller waited."""
        return 1000 * percentile([pod.review_seconds for pod in self.pods], 99)

    @property
    def faults(self) -> int:
        """The number of wrong and lost answers."""
        return sum(pod.wrong + len(pod.lost) for pod in self.pods)

    @property
    def lost(self) -> Counter[str]:
        """Why answers were lost, and how often."""
        return Counter(why for pod in self.pods for why in pod.lost)

    def row(self, quiet: "Phase") -> list[Cell]:
        """Returns the cells of the table, in the order of COLUMNS."""
        known = [math.inf if pod.known_seconds is None else pod.known_seconds for pod in self.pods]
        in_time = sum(seconds <= KNOWN_IN_SECONDS for seconds in known)
        return [
            *(self.words, len(self.pods), round(100 * in_time / len(known), 2) if known else 0.0),
            *(percentile(known, 50), percentile(known, 95)),
            *(sum(pod.wrong for pod in self.pods), self.lost.total(), self.review_p99_ms),
            self.review_p99_ms / quiet.review_p99_ms,
            1000 * percentile([seconds for pod in self.pods for seconds in pod.filter_seconds], 99),
            *(self.megabytes, self.both_megabytes, 1000 * self.hold_seconds, 1000 * self.livez_seconds),
            *(self.service_seconds / self.seconds, self.children_seconds / self.seconds, self.deaths),
            1000 * percentile([pod.late_seconds for pod in self.pods], 99),
        ]

    def missed(self, quiet: "Phase") -> list[str]:
        """Returns the marks that are missed, in words."""
        figures = dict(zip(COLUMNS, self.row(quiet), strict=True))
        words = list[str]()
        for column, mark in MARKS.items():
            figure = figures[column]
            assert isinstance(figure, int | float)
            holds = figure >= mark if column == "known %" else figure <= mark  # no figure holds that is no number
            if not holds:
                words.append(f"{column} {figure:,.4g}, not {_bound(column)}")
        return words


def marks_row() -> list[Cell]:
    """Returns the row of the table that states the marks."""
    return ["mark", *(_bound(column) if column in MARKS else "" for column in COLUMNS[1:])]


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that so many percent of the values do not exceed; infinite without values."""
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)] if values else math.inf


def _bound(column: str) -> str:
    return f"{'≥' if column == 'known %' else '≤'} {MARKS[column]:g}"
