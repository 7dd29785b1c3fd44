"""Computes figures from samples taken while pods were placed: pods a second, processor time per pod, durations.

This module is pure: it takes no samples and makes no claims.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from benchmarks.cluster.scheduler_metrics import Quantiles

_ENOUGH = 0.5  # the share of all pods that must be bound between the first and the last sample that count


class Sample(msgspec.Struct, frozen=True):
    """Pods bound and processor seconds of each process, by its name, up to this moment of any clock.

    `machine_seconds` is the processor time of everything on the machine.
    """

    at_seconds: float
    bound: int
    cpu_seconds: Mapping[str, float]
    machine_seconds: float = 0.0


class Pace(msgspec.Struct, frozen=True):
    """How fast pods were bound, and the cost of each; `is_steady` if starting and ending are excluded.

    `other_cores` is how many cores were busy with other processes than those observed. A large value means disturbance.
    """

    pods_per_second: float
    cpu_milliseconds: Mapping[str, float]
    is_steady: bool
    other_cores: float = 0.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One variant, measured once. `calls_per_pod` is by verb, where the extender counts calls."""

    variant: str
    nodes: int
    pods: int
    pace: Pace
    created_per_second: float
    algorithm: Quantiles | None
    attempt: Quantiles | None
    calls_per_pod: Mapping[str, float] = {}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One variant over all rounds: medians, and the highest disturbance.

    `paces` are the pods a second of each round.
    """

    variant: str
    nodes: int
    pods: int
    paces: tuple[float, ...]
    created_per_second: float
    algorithm: Quantiles | None
    attempt: Quantiles | None
    cpu_milliseconds: Mapping[str, float]
    calls_per_pod: Mapping[str, float]
    other_cores: float

    @property
    def pods_per_second(self) -> float:
        """The median of the rounds."""
        return median(self.paces)

    def over(self, other: "Summary") -> float:
        """Returns the median of the ratios of this pace to the other variant's pace in the same round.

        It is not the ratio of the medians, since each round has a cluster of its own, and some are slower for all
        variants.
        """
        return median(pace / others for pace, others in zip(self.paces, other.paces, strict=True))


def pace_of(samples: Sequence[Sample]) -> Pace:
    """Returns the pace between the first and the last sample at which some pods were bound and others not.

    If less than half of the pods lie between them, as in a run of one second, the samples at both ends count too. They
    include kube-scheduler's start, so the pace is then a lower bound. Raises ValueError if nothing was bound.
    """
    first, last = samples[0].bound, samples[-1].bound
    amid = [sample for sample in samples if first < sample.bound < last]
    is_steady = len(amid) > 1 and amid[-1].bound - amid[0].bound >= _ENOUGH * (last - first)
    counted = amid if is_steady else samples
    begin, end = counted[0], counted[-1]
    bound, seconds = end.bound - begin.bound, end.at_seconds - begin.at_seconds
    if not bound:
        raise ValueError("no pod was bound between the samples")
    names = begin.cpu_seconds.keys() & end.cpu_seconds.keys()
    spent = {name: (end.cpu_seconds[name] - begin.cpu_seconds[name]) * 1000 / bound for name in names}
    other = end.machine_seconds - begin.machine_seconds - sum(spent.values()) * bound / 1000
    return Pace(bound / seconds, spent, is_steady, max(0.0, other) / seconds)


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Returns one summary for each variant and number of nodes, in the order of their first measurement."""
    groups: dict[tuple[str, int], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault((each.variant, each.nodes), []).append(each)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[Measurement]) -> Summary:
    return Summary(
        variant=group[0].variant,
        nodes=group[0].nodes,
        pods=group[0].pods,
        paces=tuple(each.pace.pods_per_second for each in group),
        created_per_second=median(each.created_per_second for each in group),
        algorithm=_medians([each.algorithm for each in group]),
        attempt=_medians([each.attempt for each in group]),
        cpu_milliseconds=_by_name([each.pace.cpu_milliseconds for each in group]),
        calls_per_pod=_by_name([each.calls_per_pod for each in group]),
        other_cores=max(each.pace.other_cores for each in group),
    )


def _medians(found: Sequence[Quantiles | None]) -> Quantiles | None:
    there = [each for each in found if each]
    return Quantiles(median(each.p50 for each in there), median(each.p99 for each in there)) if there else None


def _by_name(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted(set[str]().union(*maps))
    return {name: median(each[name] for each in maps if name in each) for name in names}
