"""Reads kube-scheduler's metrics: how many pods it has placed, and how long its steps took.

This module is pure: it parses the Prometheus text format.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

ATTEMPT = "scheduler_scheduling_attempt_duration_seconds"
"""From the start of a pod's scheduling attempt to its binding, by result."""
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"
"""Filtering and scoring of one pod, with the extender's calls. No other pod is scheduled meanwhile."""
_SCHEDULED = re.compile(r'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"[^}]*\} (\S+)$', re.MULTILINE)
_LE = re.compile(r'[{,]le="([^"]+)"')


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of a duration, in milliseconds."""

    p50: float
    p99: float


def scheduled(text: str) -> int:
    """Returns how many pods have been bound; 0 if the counter is missing, as it is at the start."""
    return sum(int(float(value)) for value in _SCHEDULED.findall(text))


def quantiles(text: str, name: str, *, label: str = "") -> Quantiles | None:
    """Returns the quantiles of the histogram's series with that label (`result="scheduled"`); None if it is empty."""
    buckets = _buckets(text, name, label)
    if not buckets or not buckets[-1][1]:
        return None
    return Quantiles(*(quantile(buckets, part) * 1000 for part in (0.5, 0.99)))


def quantile(buckets: Sequence[tuple[float, float]], part: float) -> float:
    """Returns the quantile as Prometheus' histogram_quantile does, linear within a bucket.

    Buckets are (upper bound, count up to it), the last one +Inf. A quantile beyond the last finite bound is that bound.
    """
    rank = part * buckets[-1][1]
    for (below, before), (bound, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= rank and count > before:
            return below if math.isinf(bound) else below + (bound - below) * (rank - before) / (count - before)
    return 0.0


def _buckets(text: str, name: str, label: str) -> list[tuple[float, float]]:
    """Returns (upper bound, count up to it), summed over all series that have the label."""
    counts: defaultdict[float, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{") and label in line and (bound := _LE.search(line)):
            counts[float(bound[1])] += float(line.rpartition(" ")[2])
    return sorted(counts.items())
