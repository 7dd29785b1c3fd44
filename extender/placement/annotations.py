"""The annotations of pods and namespaces: what their authors may set, and what the service writes.

`ANNOTATIONS` declares each annotation once. The keys read from pods and namespaces, the keys taken back and the
documentation are derived from it. The namespace's value is the default, and the pod's overrides it. A value that is not
allowed is reported and ignored; it is never an error for the pod.
"""

import enum
import re
from collections.abc import Callable, Mapping

import msgspec

from extender.images.platform import ARCHITECTURES, normalize_platform

PREFIX = "multiarch-extender.io/"
"""The prefix of every annotation's key."""

MODE = f"{PREFIX}mode"
PREFER = f"{PREFIX}prefer"
PREFER_SHARE = f"{PREFIX}prefer-share"
SPREAD = f"{PREFIX}spread"
UNKNOWN = f"{PREFIX}unknown"
REASON = f"{PREFIX}reason"
PLATFORMS = f"{PREFIX}platforms"
ADDED = f"{PREFIX}added"
CANARY = f"{PREFIX}canary"

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
    have the preference; None for all of them, or once it is decided whether this pod is one of them. `unknown` is None
    if not set; then the operator's setting applies. `problems` has one short sentence for each value that was ignored.
    `spread`: replicas are spread over architectures, and have no preference.
    """

    mode: Mode = Mode.ENFORCE
    prefer: str | None = None
    prefer_share: float | None = None
    spread: bool = False
    unknown: Choice | None = None
    problems: tuple[str, ...] = ()


class Writer(enum.StrEnum):
    """Who writes an annotation: the author of the pod or namespace on that object, or the service on pods.

    `CANARY`: whoever sends a pod as a dry run to see whether the webhook is reached, and the webhook on that pod.
    """

    POD = "pod"
    NAMESPACE = "namespace"
    SERVICE = "service"
    CANARY = "canary"


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One annotation. `values` tells which values it may have and `meaning` what they do, both in Markdown.

    `parse` reads an author's value into `field` of `Overrides`, and raises ValueError if `values` does not allow it.
    Annotations that the service or a canary writes have neither.
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


def _parse_switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError(value)
    return value == "true"


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
        meaning="only this share of a workload's pods has the preference, always the same pods",
        field="prefer_share",
        parse=_parse_share,
    ),
    Annotation(
        key=SPREAD,
        writers=_AUTHORS,
        values="`true` or `false`",
        meaning="spread the replicas of a workload over the architectures of their images, without a preference",
        field="spread",
        parse=_parse_switch,
    ),
    Annotation(
        key=UNKNOWN,
        writers=_AUTHORS,
        values=_one_of(Choice),
        meaning="what to do about images that are unknown to the scheduler's verbs (not pending), or not known when a "
        "pod is created; `retry` then holds the pod where `admission.unknown` is `gate`",
        field="unknown",
        parse=Choice,
    ),
    Annotation(
        key=REASON,
        writers=(Writer.SERVICE,),
        values="a sentence",
        meaning="why the pod is kept to some nodes, for which the scheduler's own event names no image; why it is "
        "held; or that it was let through though an image was not known",
    ),
    Annotation(
        key=ADDED,
        writers=(Writer.SERVICE,),
        values="JSON",
        meaning="what was added to the pod, so that a later pass over changed images can take it back",
    ),
    Annotation(
        key=PLATFORMS,
        writers=(Writer.SERVICE,),
        values="such as `linux/amd64,linux/arm64`",
        meaning="with `admission.platforms_annotation`: the platforms that all images of the pod have in common, "
        "sorted, for [policies](how-to/ask-from-a-policy.md); none while one image is not known",
    ),
    Annotation(
        key=CANARY,
        writers=(Writer.CANARY,),
        values="up to 64 letters, digits and dashes",
        meaning="on a pod that is created as a dry run: the webhook puts its mark behind the value, and looks nothing "
        "up; elsewhere it means nothing",
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
