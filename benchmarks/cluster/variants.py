"""What the throughput benchmark compares: which extender is called, with which verbs, and for which pods.

This module is pure. It also says how each variant changes the shipped KubeSchedulerConfiguration.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

FILTER, PRIORITIZE = "filter", "prioritize"
BOTH = (FILTER, PRIORITIZE)
WHOLE_PODS_SHARE = 10
"""A call with whole nodes carries megabytes, so such variants place so many times fewer pods."""


class ExtenderChoice(StrEnum):
    """The extender that kube-scheduler calls."""

    NOBODY = "none"
    NULL = "null"
    SCORING = "null scoring"
    TYPED = "typed"
    OURS = "ours"


class Pods(StrEnum):
    """The platforms of the pods' one image: both architectures, or amd64 only."""

    MULTI = "multi-arch"
    SINGLE = "amd64-only"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the cluster. A `claimed` variant is part of a claim, so it is measured in every round.

    `verbs` are the extender's verbs, `by_names` is nodeCacheCapable. With `affinity` the webhook is called at creation,
    with that `admission.node_affinity`. With `by_hand` the pods are created with what the webhook would add, and there
    is neither webhook nor service. With `strict` our service prefers arm64 by filter.
    """

    name: str
    extender: ExtenderChoice
    pods: Pods = Pods.MULTI
    verbs: tuple[str, ...] = ()
    by_names: bool = True
    affinity: str = ""
    by_hand: bool = False
    strict: bool = False
    claimed: bool = False

    def entry(self) -> Mapping[str, Any]:
        """Returns what this variant changes in the extender's entry; None removes a field."""
        absent = {f"{verb}Verb": None for verb in BOTH if verb not in self.verbs}
        return {**absent, "nodeCacheCapable": self.by_names}

    def count(self, pods: int) -> int:
        """Returns how many of so many pods are placed in this variant."""
        return pods if self.by_names else max(1, pods // WHOLE_PODS_SHARE)


def _asking(name: str, extender: ExtenderChoice, pods: Pods) -> Variant:
    return Variant(name=name, extender=extender, pods=pods, verbs=BOTH, claimed=True)


VARIANTS: tuple[Variant, ...] = (
    Variant(name="none", extender=ExtenderChoice.NOBODY, claimed=True),
    Variant(name="affinity by hand", extender=ExtenderChoice.NOBODY, affinity="required", by_hand=True, claimed=True),
    Variant(name="webhook required", extender=ExtenderChoice.NOBODY, affinity="required", claimed=True),
    Variant(name="webhook preferred", extender=ExtenderChoice.NOBODY, affinity="preferred", claimed=True),
    _asking("null scoring", ExtenderChoice.SCORING, Pods.MULTI),
    _asking("null", ExtenderChoice.NULL, Pods.MULTI),
    _asking("ours", ExtenderChoice.OURS, Pods.MULTI),
    Variant(name="ours strict", extender=ExtenderChoice.OURS, verbs=(FILTER,), strict=True, claimed=True),
    _asking("typed", ExtenderChoice.TYPED, Pods.MULTI),
    _asking("null single", ExtenderChoice.NULL, Pods.SINGLE),
    _asking("ours single", ExtenderChoice.OURS, Pods.SINGLE),
    _asking("typed single", ExtenderChoice.TYPED, Pods.SINGLE),
    Variant(name="null whole", extender=ExtenderChoice.NULL, verbs=BOTH, by_names=False),
    Variant(name="ours whole", extender=ExtenderChoice.OURS, verbs=BOTH, by_names=False),
    Variant(name="typed whole", extender=ExtenderChoice.TYPED, verbs=BOTH, by_names=False),
)
"""Variants that are compared are next to each other, so that drift in a cluster affects both."""

QUICK = tuple(variant.name for variant in VARIANTS if variant.claimed)
"""The variants that the claims need."""


def chosen(names: Iterable[str]) -> list[Variant]:
    """Returns the variants of these names, in their order of measurement; all of them for no names.

    Raises ValueError.
    """
    wanted = set(names)
    if unknown := wanted - {variant.name for variant in VARIANTS}:
        known = ", ".join(variant.name for variant in VARIANTS)
        raise ValueError(f"no such variant: {', '.join(sorted(unknown))}; there are {known}")
    return [variant for variant in VARIANTS if not wanted or variant.name in wanted]


def in_round(variants: Iterable[Variant], number: int) -> list[Variant]:
    """Returns the variants that the round measures: the claimed ones, and all in the first round.

    Every second round is in reverse order.
    """
    wanted = [variant for variant in variants if variant.claimed or number == 0]
    return wanted[::-1] if number % 2 else wanted
