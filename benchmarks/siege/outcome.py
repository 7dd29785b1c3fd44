"""What one attack has done to the honest load: the figures of a row, and the marks that they are judged by."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.report import Cell
from benchmarks.siege.records import DelayRecord, HoldRecord, PodRecord, Record

MOST_RATIO, LEAST_KNOWN, MOST_MEGABYTES, MOST_HOLD_MS = 2.0, 99.0, 400.0, 20.0
IN_TIME_SECONDS, IN_TIME_CALLS = 2.0, 2
REVIEW_RATIO, FILTER_RATIO = "review × quiet", "filter × quiet"
COLUMNS = [
    *("attack", "review p50 ms", "review p99 ms", REVIEW_RATIO, "filter p99 ms", FILTER_RATIO),
    *("known in time %", "wrong", "lost", "RSS MB", "killed", "hold ms", "where the loop was held"),
]
MARKS: list[Cell] = [
    *("mark", "", "", f"≤ {MOST_RATIO:g}", "", f"≤ {MOST_RATIO:g}"),
    *(f"≥ {LEAST_KNOWN:g}", "0", "0", f"≤ {MOST_MEGABYTES:g}", "", f"≤ {MOST_HOLD_MS:g}", ""),
]
_MOST_CAUSE = 60


class Window(msgspec.Struct, frozen=True):
    """What was recorded in a span of time."""

    pods: Sequence[PodRecord]
    delays: Sequence[DelayRecord]
    holds: Sequence[HoldRecord]

    @property
    def review_ms(self) -> list[float]:
        """The seconds of each answered review, in milliseconds."""
        return [pod.review_seconds * 1000 for pod in self.pods if pod.review_seconds is not None]

    @property
    def filter_ms(self) -> list[float]:
        """The time of each filter call, from when it was due, in milliseconds."""
        return [seconds * 1000 for pod in self.pods for seconds in pod.filter_seconds]

    @property
    def known_percent(self) -> float:
        """The share of pods whose image was known at the first call or the first retry, within two seconds."""
        known = sum(
            pod.settled_seconds is not None
            and pod.settled_seconds <= IN_TIME_SECONDS
            and len(pod.filters) <= IN_TIME_CALLS
            for pod in self.pods
        )
        return 100 * known / len(self.pods) if self.pods else 0.0

    @property
    def wrong(self) -> int:
        """The number of answers that were not right."""
        return sum(pod.wrong for pod in self.pods)

    @property
    def faults(self) -> Counter[str]:
        """Why answers were lost, and how often."""
        return Counter(fault for pod in self.pods for fault in pod.faults)

    def late_ms(self, who: str) -> list[float]:
        """How late the timers of a process were, in milliseconds."""
        return [late * 1000 for record in self.delays if record.who == who for late in record.late_seconds]

    @property
    def worst_hold(self) -> HoldRecord | None:
        """The longest hold of the event loop."""
        return max(self.holds, key=lambda hold: hold.held_seconds, default=None)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One attack: the window in which it was made, the service's memory, and what the attackers counted.

    `cores` is how much of a core the service used, `waited` how much its main thread waited for one that others had,
    `other_cores` what everything else on this machine used.
    """

    words: str
    window: Window
    megabytes: float = 0.0
    deaths: int = 0
    cores: float = 0.0
    waited: float = 0.0
    other_cores: float = 0.0
    did: str = ""

    def row(self, quiet: Window) -> list[Cell]:
        """Returns the cells of the table, in the order of COLUMNS."""
        reviews, filters, hold = self.window.review_ms, self.window.filter_ms, self.window.worst_hold
        return [
            *(self.words, percentile(reviews, 50), percentile(reviews, 99)),
            ratio(percentile(reviews, 99), percentile(quiet.review_ms, 99)),
            percentile(filters, 99),
            ratio(percentile(filters, 99), percentile(quiet.filter_ms, 99)),
            *(round(self.window.known_percent, 2), self.window.wrong, self.window.faults.total()),
            *(self.megabytes or None, self.deaths, hold.held_seconds * 1000 if hold else 0.0),
            cause_of(hold) if hold else "",
        ]

    def missed(self, quiet: Window) -> list[str]:
        """Returns the marks that are missed, in words."""
        figures = dict(zip(COLUMNS, self.row(quiet), strict=True))
        judged = {
            "review p99 against quiet": (_number(figures[REVIEW_RATIO]), MOST_RATIO),
            "filter p99 against quiet": (_number(figures[FILTER_RATIO]), MOST_RATIO),
            "wrong answers": (self.window.wrong, 0),
            "lost answers": (self.window.faults.total(), 0),
            "RSS in MB": (self.megabytes, MOST_MEGABYTES),
            "hold of the event loop in ms": (_number(figures["hold ms"]), MOST_HOLD_MS),
        }
        words = [f"{what} {value:,.4g} > {mark:g}" for what, (value, mark) in judged.items() if value > mark]
        if self.window.known_percent < LEAST_KNOWN:
            words.append(f"known in time {self.window.known_percent:.2f} % < {LEAST_KNOWN:g} %")
        return words


def window_of(records: Iterable[Record], began: float, ended: float) -> Window:
    """Returns what was recorded between two times; a pod counts where it was created."""
    inside = [record for record in records if not hasattr(record, "at") or began <= record.at < ended]
    return Window(
        [record for record in inside if isinstance(record, PodRecord)],
        [record for record in inside if isinstance(record, DelayRecord)],
        [record for record in inside if isinstance(record, HoldRecord)],
    )


def joined(windows: Sequence[Window]) -> Window:
    """Returns what was recorded in any of the windows."""
    return Window(
        [pod for window in windows for pod in window.pods],
        [delay for window in windows for delay in window.delays],
        [hold for window in windows for hold in window.holds],
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that so many percent of the values do not exceed; infinite without values."""
    if not values:
        return float("inf")
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)]


def ratio(value: float, quiet: float) -> float:
    """Returns value / quiet; infinite if one of them has no samples."""
    return value / quiet if quiet and quiet != float("inf") else float("inf")


def cause_of(hold: HoldRecord) -> str:
    """Returns where the loop was held, on one short line; empty if it was held for too short a time to be seen."""
    if hold.collected_seconds > hold.held_seconds / 2:
        return f"garbage collection{' in ' * bool(hold.cause)}{hold.cause}"[:_MOST_CAUSE]
    return hold.cause[:_MOST_CAUSE]


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else float("inf")
