"""What operators and authors want: the policy, the annotations, and the decisions about one pod that features share.

`ANNOTATIONS` declares each annotation once, of those that authors may set and those that the service writes. The keys
read from pods and namespaces, the keys taken back and the documentation are derived from it. The namespace's value is
the default, and the pod's overrides it. A value that is not allowed is reported and ignored; it is never an error for
the pod. Writes nothing. `scheduling` and `mutation` both use this file, so that they agree.
"""

import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from extender.images.content import LOCAL
from extender.images.platform import ARCHITECTURES, Compatibility, Platform, is_of_nodes, normalize_platform, runs_on
from extender.kubernetes.core_v1 import Pod, PodSpec
from extender.placement.bounds import RECORD_CHARACTERS
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
from extender.placement.nodes import PREFIX
from extender.placement.shares import drawn_point, point_of

MODE = f"{PREFIX}mode"
PREFER = f"{PREFIX}prefer"
PREFER_SHARE = f"{PREFIX}prefer-share"
UNKNOWN = f"{PREFIX}unknown"
REASON = f"{PREFIX}reason"
PLATFORMS = f"{PREFIX}platforms"
ADDED = f"{PREFIX}added"

NO_PREFERENCE = "none"
"""The value of `prefer` that turns off all preferences."""


class Mode(enum.StrEnum):
    """What happens with a decision: it takes effect, it is only recorded, or it is not made."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    IGNORE = "ignore"


class Choice(enum.StrEnum):
    """What to do about a pending or unknown image."""

    RETRY = "retry"
    ASSUME = "assume"
    PASS = "pass"  # noqa: S105  # a verb


class Overrides(msgspec.Struct, frozen=True):
    """The settings that the annotations of a pod and its namespace override together.

    `prefer` is a normalised architecture, `none`, or None if not set. `prefer_share` is the percentage of pods that
    have the preference; None for all of them, or once it is decided whether this pod is one of them. `is_preferring`
    says whether a pod that had no name was drawn to have it; None where nothing was drawn. `is_outside`: an
    architecture is named, and the pod is outside the share. `unknown` is None if not set; then the operator's setting
    applies. `problems` has one short sentence for each value that was ignored.
    """

    mode: Mode = Mode.ENFORCE
    prefer: str | None = None
    prefer_share: float | None = None
    is_preferring: bool | None = None
    is_outside: bool = False
    unknown: Choice | None = None
    problems: tuple[str, ...] = ()

    @property
    def names_architecture(self) -> bool:
        """Whether the author names an architecture to prefer, for this pod or for others of its workload."""
        return self.is_outside or self.prefer not in (None, NO_PREFERENCE)


class Writer(enum.StrEnum):
    """Who writes an annotation: the author of the pod or namespace on that object, or the service on pods."""

    POD = "pod"
    NAMESPACE = "namespace"
    SERVICE = "service"


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One annotation. `values` says which values it may have and `meaning` what they do, both in Markdown.

    `parse` reads an author's value into `field` of `Overrides`, and raises ValueError if `values` does not allow it.
    Annotations that the service writes have neither.
    """

    key: str
    writers: tuple[Writer, ...]
    values: str
    meaning: str
    field: str = ""
    parse: Callable[[str], object] | None = None


def _parse_architecture(value: str) -> str:
    found = NO_PREFERENCE if value == NO_PREFERENCE else normalize_platform("", value[:_MOST_CHARACTERS]).architecture
    if found not in (*ARCHITECTURES, NO_PREFERENCE):
        raise ValueError(value)
    return found


_MOST_CHARACTERS = 64  # of an architecture: no name is so long, and an annotation may have 256 KiB
_SHARE = re.compile(r"(?:100(?:\.0{1,2})?|[0-9]{1,2}(?:\.[0-9]{1,2})?)%", re.ASCII)


def _parse_share(value: str) -> float:
    if not _SHARE.fullmatch(value):
        raise ValueError(value)
    return float(value[:-1])


def _one_of(words: type[enum.StrEnum]) -> str:
    return f"one of {', '.join(f'`{word}`' for word in words)}"


_AUTHORS = (Writer.POD, Writer.NAMESPACE)

ANNOTATIONS = (
    Annotation(
        key=MODE,
        writers=_AUTHORS,
        values=_one_of(Mode),
        meaning="decide; decide, record and change nothing; do not look",
        field="mode",
        parse=Mode,
    ),
    Annotation(
        key=PREFER,
        writers=_AUTHORS,
        values=f"an architecture that Go knows, such as `arm64`, or `{NO_PREFERENCE}`",
        meaning="boost this architecture by 10 instead, or none",
        field="prefer",
        parse=_parse_architecture,
    ),
    Annotation(
        key=PREFER_SHARE,
        writers=_AUTHORS,
        values="a percentage such as `20%`",
        meaning="only this share of a workload's pods has the preference",
        field="prefer_share",
        parse=_parse_share,
    ),
    Annotation(
        key=UNKNOWN,
        writers=_AUTHORS,
        values=_one_of(Choice),
        meaning="what to do about images that are unknown to the scheduler, or not known when a pod is created; "
        "`retry` holds the pod where `admission.unknown` is `gate`",
        field="unknown",
        parse=Choice,
    ),
    Annotation(
        key=REASON,
        writers=(Writer.SERVICE,),
        values="a sentence",
        meaning="why the pod is kept to some nodes or held, or that it was admitted though an image was not known",
    ),
    Annotation(
        key=ADDED,
        writers=(Writer.SERVICE,),
        values="JSON",
        meaning="what was added to the pod, so that it can be taken back",
    ),
    Annotation(
        key=PLATFORMS,
        writers=(Writer.SERVICE,),
        values="such as `linux/amd64,linux/arm64`",
        meaning="with `admission.platforms_annotation`: the platforms that all images of the pod have in common, for "
        "[policies](how-to/check-manifests-in-ci.md#refuse-pods-by-a-policy)",
    ),
)


def keys_written_by(writer: Writer) -> frozenset[str]:
    """The keys of the annotations that `writer` writes."""
    return frozenset(annotation.key for annotation in ANNOTATIONS if writer in annotation.writers)


POD_KEYS = keys_written_by(Writer.POD)
"""The keys read from pods. A pod with any of these influences the decision about itself."""
NAMESPACE_KEYS = keys_written_by(Writer.NAMESPACE)
"""The keys read from namespaces."""
SERVICE_KEYS = tuple(sorted(keys_written_by(Writer.SERVICE)))
"""The keys that the service writes on pods, and takes back in a later pass."""

_DEFAULTS = Overrides()
_QUOTED_CHARACTERS = 40  # of an ignored value: annotations may be 256 KiB long, and the sentence goes into warnings

Annotations = Mapping[str, str] | msgspec.UnsetType | None


def read_overrides(pod: Annotations, namespace: Annotations, default: Overrides = _DEFAULTS) -> Overrides:
    """The overrides in the annotations of a pod and of its namespace; either may be missing, null or without ours.

    `default` is what neither of them overrides.
    """
    overrides = default
    if namespace and not namespace.keys().isdisjoint(NAMESPACE_KEYS):
        overrides = _override(overrides, Writer.NAMESPACE, namespace)
    if pod and not pod.keys().isdisjoint(POD_KEYS):
        overrides = _override(overrides, Writer.POD, pod)
    return overrides


def _override(default: Overrides, owner: Writer, annotations: Mapping[str, str]) -> Overrides:
    found: dict[str, object] = {}
    problems = list(default.problems)
    for annotation in ANNOTATIONS:
        value = annotations.get(annotation.key)
        if value is None or annotation.parse is None or owner not in annotation.writers:
            continue
        try:
            found[annotation.field] = annotation.parse(value)
        except ValueError:
            problems.append(_problem(owner, annotation, value))
    return msgspec.structs.replace(default, **found, problems=tuple(problems))


def _problem(owner: Writer, annotation: Annotation, value: str) -> str:
    shown = value if len(value) <= _QUOTED_CHARACTERS else f"{value[:_QUOTED_CHARACTERS]}…"
    right = annotation.values.replace("`", "")
    return f"the {owner}'s annotation {annotation.key} is {shown!r} and was ignored; it must be {right}"


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
    nodes of the highest score are the only ones that remain.
    `runtime_classes` has by name the RuntimeClasses whose pods are left alone, and those that mean other platforms
    than their nodes have. `overrides` has the mode of pods that neither they themselves nor their namespaces give
    another.
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
    if pod.metadata and pod.metadata.annotations and not pod.metadata.annotations.keys().isdisjoint(_STATIC_KEYS):
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


def overrides_of(pod: Pod, namespace: str, defaults: Annotations, policy: Policy, *, draw: str = "") -> Overrides:
    """What the annotations of the pod and of its namespace override, with what is decided about this pod alone.

    `defaults` are the namespace's annotations. A pod outside the share that has the preference has none. Whether it is
    inside follows from its name. A pod that has no name yet is drawn by the text `draw`, and what was drawn for it is
    in its record from then on.
    """
    found = read_overrides(pod.metadata.annotations if pod.metadata else None, defaults, policy.overrides)
    if found.prefer == NO_PREFERENCE or found.prefer_share is None:
        return found
    drawn = _drawn_before(pod)
    point = point_of(pod, namespace)
    is_in = found.prefer_share > (drawn_point(draw) if point is None else point)
    if found.prefer_share == _WHOLE:
        is_in = True
    elif drawn is not None:
        is_in = drawn
    elif point is None and draw:
        drawn = is_in
    prefer = found.prefer if is_in else NO_PREFERENCE
    is_outside = found.names_architecture and not is_in
    return msgspec.structs.replace(found, prefer=prefer, prefer_share=None, is_preferring=drawn, is_outside=is_outside)


class _DrawnRecord(msgspec.Struct, frozen=True, rename="camel"):
    is_preferring: bool | None = None


_DRAWN = msgspec.json.Decoder(_DrawnRecord)


def _drawn_before(pod: Pod) -> bool | None:
    """What the record of what was added to the pod says of it; None if it says nothing."""
    annotations = pod.metadata.annotations if pod.metadata else None
    text = annotations.get(ADDED) if annotations else None
    if text is None or len(text) > RECORD_CHARACTERS:
        return None
    try:
        return _DRAWN.decode(text).is_preferring
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


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
