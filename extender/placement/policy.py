"""The operator's policy, and the decisions about one pod that all outlets share.

Depends on no node and writes nothing. `scheduling` and `mutation` both use this file, so that they agree.
"""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from extender.images.content import LOCAL
from extender.images.platform import Compatibility, Platform, runs_on
from extender.kubernetes.core_v1 import Pod, PodSpec
from extender.placement.annotations import NO_PREFERENCE, Annotations, Choice, Mode, Overrides, read_overrides
from extender.placement.facts import ImageFact, Pending, PodImage, RunsOn, Unknown, of_system, system_of
from extender.placement.preferred_nodes import EVERY_NODE, NodeConditions
from extender.placement.shares import point_of

HIGHEST_PREFERENCE = 10
"""The highest score of the extender protocol (MaxExtenderPriority), which the annotation `prefer` gives."""

_WHOLE = 100.0
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
    nodes of the highest score are the only ones that remain. `preferred_nodes` tells which nodes it is about.
    `overrides` has the mode of pods that neither they themselves nor their namespaces give another. `level_label` is
    the key of the label by which nodes state their level, as `nodes.platform_of_node` reads it.
    """

    pending: Choice = Choice.RETRY
    unknown: Choice = Choice.PASS
    assume: frozenset[Platform] = frozenset({Platform("linux", "amd64")})
    compatibility: Compatibility = Compatibility()
    preference: Mapping[str, int] = msgspec.field(default_factory=dict)
    preference_by: PreferenceBy = PreferenceBy.SCORE
    preferred_nodes: NodeConditions = EVERY_NODE
    ignore_runtime_classes: frozenset[str] = frozenset()
    overrides: Overrides = Overrides()
    level_label: str = ""


def is_exempt(pod: Pod, policy: Policy) -> bool:
    """Whether no decision is made about the pod: it is bound, static, a mirror pod, or of an ignored RuntimeClass."""
    if pod.metadata and pod.metadata.annotations and not pod.metadata.annotations.keys().isdisjoint(_STATIC_KEYS):
        return True
    return pod.spec is not None and (
        bool(pod.spec.node_name) or pod.spec.runtime_class_name in policy.ignore_runtime_classes
    )


def is_ignored(spec: PodSpec, overrides: Overrides, policy: Policy) -> bool:
    """Whether no report counts what becomes of the pod: by its mode, or by an ignored RuntimeClass."""
    return overrides.mode is Mode.IGNORE or spec.runtime_class_name in policy.ignore_runtime_classes


def policy_for(policy: Policy, images: Sequence[PodImage]) -> Policy:
    """The policy that holds for a pod of these images: it assumes no platform of another operating system."""
    assume = of_system(policy.assume, system_of(images))
    return policy if assume is policy.assume else msgspec.structs.replace(policy, assume=assume)


def choice_for(fact: Pending | Unknown, policy: Policy, overrides: Overrides) -> Choice:
    """What to do about this unresolved image.

    An image that is never pulled passes, as only the node's own copy could tell its platforms. `assume` passes too if
    the operator names no platforms to assume.
    """
    if isinstance(fact, Unknown) and fact.cause in LOCAL:
        return Choice.PASS
    choice = policy.pending if isinstance(fact, Pending) else overrides.unknown or policy.unknown
    return Choice.PASS if choice is Choice.ASSUME and not policy.assume else choice


def overrides_of(
    pod: Pod, raw_pod: bytes, namespace: str, defaults: Annotations, policy: Policy, *, draw: str = ""
) -> Overrides:
    """What the annotations of the pod and of its namespace override, with what is decided about this pod alone.

    `raw_pod` is the pod's JSON, `defaults` are the namespace's annotations, and `draw` is as in `shares.point_of`. A
    pod outside the share that has the preference has none. Nor has a pod that names one of the resources without which
    nodes are preferred: it asks for the resource, or selects nodes that have it, or tolerates their taint.
    """
    found = read_overrides(pod.metadata.annotations if pod.metadata else None, defaults, policy.overrides)
    if found.prefer == NO_PREFERENCE:
        return found
    if policy.preferred_nodes.are_named_in(raw_pod):
        return msgspec.structs.replace(found, prefer=NO_PREFERENCE, prefer_share=None)
    if found.prefer_share is None:
        return found
    is_in = found.prefer_share > point_of(pod, namespace, draw) or found.prefer_share == _WHOLE
    prefer = found.prefer if is_in else NO_PREFERENCE
    return msgspec.structs.replace(found, prefer=prefer, prefer_share=None)


def preference_for(policy: Policy, overrides: Overrides) -> Mapping[str, int]:
    """The score of each architecture for a multi-arch pod: the operator's map, unless `prefer` replaces it.

    Empty for a pod that is spread over architectures.
    """
    if overrides.spread:
        return {}
    if overrides.prefer is None:
        return policy.preference
    return {} if overrides.prefer == NO_PREFERENCE else {overrides.prefer: HIGHEST_PREFERENCE}


def common_platforms(facts: Sequence[ImageFact], compatibility: Compatibility) -> frozenset[Platform]:
    """The platforms named by the known images on which all known images run.

    Empty if no image is known or no platform is common to all. Each named platform is treated as a node's platform, so
    arm/v6 and arm/v7 have arm/v7 in common.
    """
    known = [fact.platforms for fact in facts if isinstance(fact, RunsOn)]
    return frozenset(
        platform
        for platform in frozenset[Platform]().union(*known)
        if all(runs_on(platforms, platform, compatibility) for platforms in known)
    )


def is_multi_arch(facts: Sequence[ImageFact], compatibility: Compatibility) -> bool:
    """Whether all images are known and their common platforms have at least two architectures."""
    return len(common_architectures(facts, compatibility)) >= 2


def common_architectures(facts: Sequence[ImageFact], compatibility: Compatibility) -> frozenset[str]:
    """The architectures of the images' common platforms; empty unless all images are known."""
    if any(isinstance(fact, Pending | Unknown) for fact in facts):
        return frozenset()
    return frozenset(platform.architecture for platform in common_platforms(facts, compatibility))
