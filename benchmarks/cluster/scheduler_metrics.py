"""kube-scheduler's own figures: how many pods it has placed, and how long its steps took.

Pure. Knows the Prometheus text format and the names of kube-scheduler's metrics; must not know how the text was got.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

ATTEMPT = "scheduler_scheduling_attempt_duration_seconds"
"""From a pod's turn to its binding, by result; scheduling and binding together."""
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"
"""Filtering and scoring of one pod, the extender's calls included: nothing else is scheduled meanwhile."""
_SCHEDULED = re.compile(r'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"[^}]*\} (\S+)$', re.MULTILINE)
_LE = re.compile(r'[{,]le="([^"]+)"')


class Quantiles(msgspec.Struct, frozen=True):
    """Of a duration, in milliseconds."""

    p50: float
    p99: float


def scheduled(text: str) -> int:
    """How many pods have been bound; 0 while there are none and the counter is missing."""
    return sum(int(float(value)) for value in _SCHEDULED.findall(text))


def quantiles(text: str, name: str, *, label: str = "") -> Quantiles | None:
    """Of the histogram of that name, of its series with that label (`result="scheduled"`); None if it is empty."""
    buckets = _buckets(text, name, label)
    if not buckets or not buckets[-1][1]:
        return None
    return Quantiles(*(quantile(buckets, part) * 1000 for part in (0.5, 0.99)))


def quantile(buckets: Sequence[tuple[float, float]], part: float) -> float:
    """As Prometheus' histogram_quantile: linear within a bucket; of (upper bound, count up to it), the last is +Inf.

    What lies beyond the last finite bound is told as that bound.
    """
    rank = part * buckets[-1][1]
    for (below, before), (bound, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= rank and count > before:
            return below if math.isinf(bound) else below + (bound - below) * (rank - before) / (count - before)
    return 0.0


def _buckets(text: str, name: str, label: str) -> list[tuple[float, float]]:
    """(upper bound, count up to it) over all series that have the label."""
    counts: defaultdict[float, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{") and label in line and (bound := _LE.search(line)):
            counts[float(bound[1])] += float(line.rpartition(" ")[2])
    return sorted(counts.items())
