"""Computes pods a second from samples taken while pods were placed, and their medians over rounds.

This module is pure: it takes no samples and makes no claims.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

_ENOUGH = 0.5  # the share of all pods that must be bound between the first and the last sample that count


class Sample(msgspec.Struct, frozen=True):
    """The number of pods bound up to this moment of any clock."""

    at_seconds: float
    bound: int


class Pace(msgspec.Struct, frozen=True):
    """How fast pods were bound; `is_steady` if starting and ending are excluded."""

    pods_per_second: float
    is_steady: bool


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One variant, measured once."""

    variant: str
    nodes: int
    pods: int
    pace: Pace
    created_per_second: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One variant over all rounds: `paces` are the pods a second of each round, the others medians."""

    variant: str
    nodes: int
    pods: int
    paces: tuple[float, ...]
    created_per_second: float

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
    if end.bound == begin.bound:
        raise ValueError("no pod was bound between the samples")
    return Pace((end.bound - begin.bound) / (end.at_seconds - begin.at_seconds), is_steady)


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Returns one summary for each variant and number of nodes, in the order of their first measurement."""
    groups: dict[tuple[str, int], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault((each.variant, each.nodes), []).append(each)
    return [
        Summary(
            variant=group[0].variant,
            nodes=group[0].nodes,
            pods=group[0].pods,
            paces=tuple(each.pace.pods_per_second for each in group),
            created_per_second=median(each.created_per_second for each in group),
        )
        for group in groups.values()
    ]
