"""What operators want, and the decisions about one pod that features share: `scheduling` and `mutation` agree by it."""

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

from extender.images.content import LOCAL
from extender.images.platform import Compatibility, Platform, is_of_nodes, runs_on
from extender.kubernetes.core_v1 import Pod, PodSpec
from extender.placement.annotations import NO_PREFERENCE, Choice, Overrides
from extender.placement.facts import (
    NO_RUNTIME_CLASSES,
    ImageFact,
    Pending,
    PodImage,
    RuntimeClass,
    Unknown,
    is_unresolved,
    known_platforms,
    of_system,
    system_of,
)

HIGHEST_PREFERENCE = 10
"""The highest score of the extender protocol (MaxExtenderPriority), which the annotation `prefer` gives."""

_MIRROR = "kubernetes.io/config.mirror"  # on the API object that mirrors a static pod
_SOURCE = "kubernetes.io/config.source"  # on a pod that a kubelet read from a file or URL instead of the API
_STATIC_KEYS = frozenset({_MIRROR, _SOURCE})
"""Every annotation of a pod on which a decision depends."""


class PreferenceBy(enum.StrEnum):
    """The scheduler verb that states the preference to kube-scheduler."""

    SCORE = "score"
    FILTER = "filter"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings that placement reads.

    `pending` and `unknown` are the choices for pending and for unknown images. `assume` holds the platforms on which
    such an image is assumed to run under `Choice.ASSUME`. An assumption can refuse a node, but never gives a pod a
    score, toleration or affinity. `preference` is a score of 0-10 by normalised architecture. By `PreferenceBy.FILTER`
    nodes of the highest score are the only ones that remain. `runtime_classes` has by name the RuntimeClasses whose
    pods are left alone, and those that mean other platforms than their nodes have. `overrides` has the mode of pods
    that neither they themselves nor their namespaces give another.
    """

    pending: Choice = Choice.RETRY
    unknown: Choice = Choice.PASS
    assume: frozenset[Platform] = frozenset({Platform("linux", "amd64")})
    compatibility: Compatibility = Compatibility()
    preference: Mapping[str, int] = msgspec.field(default_factory=dict)
    preference_by: PreferenceBy = PreferenceBy.SCORE
    runtime_classes: Mapping[str, RuntimeClass] = NO_RUNTIME_CLASSES
    overrides: Overrides = Overrides()


def is_exempt(pod: Pod, policy: Policy) -> bool:
    """Whether no decision is made about the pod: it is bound, static, a mirror pod, or of an ignored RuntimeClass."""
    if not _STATIC_KEYS.isdisjoint(pod.annotations):
        return True
    return pod.spec is not None and (bool(pod.spec.node_name) or _is_left_alone(pod.spec, policy))


def _is_left_alone(spec: PodSpec, policy: Policy) -> bool:
    runtime = policy.runtime_classes.get(spec.runtime_class_name) if spec.runtime_class_name else None
    return runtime is not None and not runtime.platforms


def policy_for(policy: Policy, images: Sequence[PodImage]) -> Policy:
    """The policy that holds for a pod of these images: it assumes no platform of another operating system.

    Nor any for a pod whose RuntimeClass runs other platforms than its nodes are of.
    """
    has_runtime = bool(images) and images[0].runtime is not None
    assume = frozenset[Platform]() if has_runtime else of_system(policy.assume, system_of(images))
    return policy if assume is policy.assume else msgspec.structs.replace(policy, assume=assume)


def choice_for(fact: Pending | Unknown, policy: Policy, overrides: Overrides) -> Choice:
    """What to do about this unresolved image.

    An image that is never pulled passes, as only the node's own copy could say its platforms. `assume` passes too if
    the operator names no platforms to assume.
    """
    if isinstance(fact, Unknown) and fact.cause in LOCAL:
        return Choice.PASS
    choice = policy.pending if isinstance(fact, Pending) else overrides.unknown or policy.unknown
    return Choice.PASS if choice is Choice.ASSUME and not policy.assume else choice


def preference_for(policy: Policy, overrides: Overrides) -> Mapping[str, int]:
    """The score of each architecture for a multi-arch pod: the operator's map, unless `prefer` replaces it."""
    if overrides.prefer is None:
        return policy.preference
    return {} if overrides.prefer == NO_PREFERENCE else {overrides.prefer: HIGHEST_PREFERENCE}


def common_platforms(known: Collection[frozenset[Platform]], compatibility: Compatibility) -> frozenset[Platform]:
    """The platforms that images of these sets of platforms name and on which all of them run.

    Empty if no image is known or no platform is common to all. Each named platform is treated as a node's platform, so
    arm/v6 and arm/v7 have arm/v7 in common.
    """
    return frozenset(
        platform
        for platform in possible_platforms(known)
        if all(runs_on(platforms, platform, compatibility) for platforms in known)
    )


_RUN_OTHERS = frozenset({"amd64", "arm64"})  # architectures that may run images of another


def possible_platforms(known: Collection[frozenset[Platform]]) -> frozenset[Platform]:
    """The platforms that images name and nodes may have, without those that one image rules out at first glance.

    Hundreds of images may name 64 platforms each. One whose operating system or architecture an image lacks need not be
    held against all the others.
    """
    if not known:
        return frozenset()
    systems = frozenset.intersection(*(frozenset(each.os for each in platforms) for platforms in known))
    architectures = frozenset.intersection(
        *(_RUN_OTHERS.union(each.architecture for each in platforms) for platforms in known)
    )
    named = filter(is_of_nodes, frozenset[Platform]().union(*known))
    return frozenset(each for each in named if each.os in systems and each.architecture in architectures)


def is_multi_arch(facts: Sequence[ImageFact], compatibility: Compatibility) -> bool:
    """Whether all images are known and their common platforms have at least two architectures."""
    if any(map(is_unresolved, facts)):
        return False
    return len({each.architecture for each in common_platforms(known_platforms(facts), compatibility)}) >= 2
