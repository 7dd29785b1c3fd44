"""Annotations: what the authors of pods and namespaces set by them, and what the service writes.

`ANNOTATIONS` declares each once. The keys that are read, the keys that are taken back, the sentences about values that
are not allowed and the documentation are derived from it. The namespace's value is the default, and the pod's overrides
it. A value that is not allowed is reported and ignored; it is never an error for the pod.
"""

import enum
import re
from collections.abc import Callable, Mapping

import msgspec

from extender.images.platform import ARCHITECTURES, normalize_platform
from extender.kubernetes.core_v1 import Pod
from extender.placement.bounds import RECORD_CHARACTERS
from extender.placement.nodes import PREFIX
from extender.placement.shares import bucket_by, bucket_of

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
    says whether a pod that had no name when it was created has it; None for others. `is_outside`: an architecture is
    named, and the pod is outside the share. `unknown` is None if not set; then the operator's setting applies.
    `problems` has one short sentence for each value that was ignored.
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

    AUTHOR = "pod, namespace"
    SERVICE = "the service"


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """One annotation. `values` says which values it may have and `meaning` what they do, both in Markdown.

    `parse` reads an author's value into `field` of `Overrides`, and raises ValueError if `values` does not allow it.
    Annotations that the service writes have neither.
    """

    key: str
    writer: Writer
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


ANNOTATIONS = (
    Annotation(
        key=MODE,
        writer=Writer.AUTHOR,
        values=_one_of(Mode),
        meaning="decide; decide, record and change nothing; do not look",
        field="mode",
        parse=Mode,
    ),
    Annotation(
        key=PREFER,
        writer=Writer.AUTHOR,
        values=f"an architecture that Go knows, such as `arm64`, or `{NO_PREFERENCE}`",
        meaning="boost this architecture by 10 instead, or none",
        field="prefer",
        parse=_parse_architecture,
    ),
    Annotation(
        key=PREFER_SHARE,
        writer=Writer.AUTHOR,
        values="a percentage such as `20%`",
        meaning="only this share of a workload's pods has the preference",
        field="prefer_share",
        parse=_parse_share,
    ),
    Annotation(
        key=UNKNOWN,
        writer=Writer.AUTHOR,
        values=_one_of(Choice),
        meaning="what to do about images that are unknown to the scheduler, or not known when a pod is created; "
        "`retry` holds the pod where `admission.unknown` is `gate`",
        field="unknown",
        parse=Choice,
    ),
    Annotation(
        key=REASON,
        writer=Writer.SERVICE,
        values="a sentence",
        meaning="why the pod is kept to some nodes or held, or that it was admitted though an image was not known",
    ),
    Annotation(
        key=ADDED,
        writer=Writer.SERVICE,
        values="JSON",
        meaning="what was added to the pod, so that it can be taken back",
    ),
    Annotation(
        key=PLATFORMS,
        writer=Writer.SERVICE,
        values="such as `linux/amd64,linux/arm64`",
        meaning="with `admission.platforms_annotation`: the platforms that all images of the pod have in common, for "
        "[policies](how-to/check-manifests-in-ci.md#refuse-pods-by-a-policy)",
    ),
)


AUTHORS_KEYS = frozenset(each.key for each in ANNOTATIONS if each.writer is Writer.AUTHOR)
"""The keys read from pods and namespaces."""
SERVICE_KEYS = tuple(sorted(each.key for each in ANNOTATIONS if each.writer is Writer.SERVICE))
"""The keys that the service writes on pods, and takes back in a later pass."""

_DEFAULTS = Overrides()
_QUOTED_CHARACTERS = 40  # of an ignored value: annotations may be 256 KiB long, and the sentence goes into warnings

Annotations = Mapping[str, str] | msgspec.UnsetType | None


def read_overrides(pod: Annotations, namespace: Annotations, default: Overrides = _DEFAULTS) -> Overrides:
    """The overrides in the annotations of a pod and of its namespace; either may be missing, null or without ours.

    `default` is what neither of them overrides.
    """
    overrides = default
    if namespace and not AUTHORS_KEYS.isdisjoint(namespace):
        overrides = _override(overrides, "namespace", namespace)
    if pod and not AUTHORS_KEYS.isdisjoint(pod):
        overrides = _override(overrides, "pod", pod)
    return overrides


def _override(default: Overrides, owner: str, annotations: Mapping[str, str]) -> Overrides:
    found: dict[str, object] = {}
    problems = list(default.problems)
    for annotation in ANNOTATIONS:
        value = annotations.get(annotation.key)
        if value is not None and annotation.parse:
            try:
                found[annotation.field] = annotation.parse(value)
            except ValueError:
                problems.append(_problem(owner, annotation, value))
    return msgspec.structs.replace(default, **found, problems=tuple(problems))


def _problem(owner: str, annotation: Annotation, value: str) -> str:
    shown = value if len(value) <= _QUOTED_CHARACTERS else f"{value[:_QUOTED_CHARACTERS]}…"
    right = annotation.values.replace("`", "")
    return f"the {owner}'s annotation {annotation.key} is {shown!r} and was ignored; it must be {right}"


_WHOLE = 100.0


def overrides_of(pod: Pod, namespace: str, defaults: Annotations, operators: Overrides, *, key: str = "") -> Overrides:
    """What the annotations of the pod and of its namespace override, with what is decided about this pod alone.

    `defaults` are the namespace's annotations, and `operators` what neither of them overrides. A pod outside the share
    that has the preference has none. Whether it is inside follows from its name. Of a pod that has no name yet it
    follows from the text `key`, and is in its record from then on.
    """
    found = read_overrides(pod.annotations, defaults, operators)
    if found.prefer == NO_PREFERENCE or found.prefer_share is None:
        return found
    recorded = _recorded_preference(pod)
    bucket = bucket_of(pod, namespace)
    is_in = found.prefer_share > (bucket_by(key) if bucket is None else bucket)
    if found.prefer_share == _WHOLE:
        is_in = True
    elif recorded is not None:
        is_in = recorded
    elif bucket is None and key:
        recorded = is_in
    prefer = found.prefer if is_in else NO_PREFERENCE
    is_outside = found.names_architecture and not is_in
    return msgspec.structs.replace(
        found, prefer=prefer, prefer_share=None, is_preferring=recorded, is_outside=is_outside
    )


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    is_preferring: bool | None = None


_RECORD = msgspec.json.Decoder(_Record)


def _recorded_preference(pod: Pod) -> bool | None:
    """What the record of what was added to the pod says of it; None if it says nothing."""
    text = pod.annotations.get(ADDED)
    if text is None or len(text) > RECORD_CHARACTERS:
        return None
    try:
        return _RECORD.decode(text).is_preferring
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
