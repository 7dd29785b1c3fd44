"""The figures of each phase of a siege."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.report import Cell
from benchmarks.siege.tenants import PodRecord

KNOWN_IN_SECONDS = 30.0
COLUMNS = [
    *("phase", "pods", "known %", "p50 s", "p95 s", "wrong", "lost", "review p99 ms", "× quiet", "filter p99 ms"),
    *("service MB", "both MB", "hold ms", "services ended", "fetchers ended", "late p99 ms"),
]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in one phase: the honest pods of it, and what the watch and the attackers have noted.

    `counts` is what the attackers' requests came to, `killed` how many fetchers were killed. The fetchers that ended
    are the others.
    """

    words: str
    pods: Sequence[PodRecord]
    megabytes: float
    both_megabytes: float
    hold_seconds: float
    deaths: int
    fetcher_ends: int
    killed: int
    counts: Mapping[str, int]

    @property
    def known_percent(self) -> float:
        """The share of the pods whose images were known in time."""
        in_time = sum(pod.known_seconds is not None and pod.known_seconds <= KNOWN_IN_SECONDS for pod in self.pods)
        return 100 * in_time / len(self.pods) if self.pods else 0.0

    @property
    def review_p99_ms(self) -> float:
        """That of all reviews; one that was not answered took as long as its caller waited."""
        return 1000 * percentile([pod.review_seconds for pod in self.pods], 99)

    @property
    def wrong(self) -> int:
        """The number of answers that were not right."""
        return sum(pod.wrong for pod in self.pods)

    @property
    def lost(self) -> Counter[str]:
        """Why answers were lost, and how often."""
        return Counter(why for pod in self.pods for why in pod.lost)

    def row(self, quiet: "Phase") -> list[Cell]:
        """Returns the cells of the table, in the order of COLUMNS."""
        known = [math.inf if pod.known_seconds is None else pod.known_seconds for pod in self.pods]
        return [
            *(self.words, len(self.pods), round(self.known_percent, 2), percentile(known, 50), percentile(known, 95)),
            *(self.wrong, self.lost.total(), self.review_p99_ms, self.review_p99_ms / quiet.review_p99_ms),
            1000 * percentile([seconds for pod in self.pods for seconds in pod.filter_seconds], 99),
            *(self.megabytes, self.both_megabytes, 1000 * self.hold_seconds, self.deaths, self.fetcher_ends),
            1000 * percentile([pod.late_seconds for pod in self.pods], 99),
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that so many percent of the values do not exceed; infinite without values."""
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)] if values else math.inf
