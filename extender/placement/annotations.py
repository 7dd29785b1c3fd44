"""The annotations of pods and namespaces: what their authors may ask for, and what we write back.

The namespace's value is the default, the pod's overrides it. A value that is none of the allowed ones is reported and
counts as absent: it is never an error for the pod.
"""

import enum
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from extender.images.platform import normalize_platform

MODE = "multiarch-extender.io/mode"
PREFER = "multiarch-extender.io/prefer"
UNKNOWN = "multiarch-extender.io/unknown"

REASON = "multiarch-extender.io/reason"
"""Written by us: why the pod was kept off nodes, where the scheduler's own event will not say it."""
ADDED = "multiarch-extender.io/added"
"""Written by us: what we added to the pod, so that a later pass over other images can take it back."""

NO_PREFERENCE = "none"
"""The value of `prefer` that asks for no boost at all."""


class Mode(enum.StrEnum):
    """How far a decision goes: into effect, into the records only, or not even made."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    IGNORE = "ignore"


class Choice(enum.StrEnum):
    """What to do about an image of which nothing is known (yet)."""

    RETRY = "retry"
    ASSUME = "assume"
    PASS = "pass"  # noqa: S105  # a verb


class Overrides(msgspec.Struct, frozen=True):
    """What the pod and its namespace ask for together.

    `prefer` is a normalised architecture, `none`, or None where nobody asked; `unknown` None leaves it to the operator.
    `problems` has one short sentence per value that was refused.
    """

    mode: Mode = Mode.ENFORCE
    prefer: str | None = None
    unknown: Choice | None = None
    problems: tuple[str, ...] = ()


_DEFAULTS = Overrides()
_ARCHITECTURE = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)
_QUOTED_CHARACTERS = 40  # of a refused value: annotations may be 256 KiB long, and the sentence goes into warnings
_Word = TypeVar("_Word", Mode, Choice)


Annotations = Mapping[str, str] | msgspec.UnsetType | None


def read_overrides(pod: Annotations, namespace: Annotations) -> Overrides:
    """The wishes in the annotations of a pod and of its namespace; either may be missing, null or lack ours."""
    if not _has_overrides(pod) and not _has_overrides(namespace):
        return _DEFAULTS
    overrides = _DEFAULTS
    for owner, annotations in (("namespace", namespace or {}), ("pod", pod or {})):
        overrides = _override(overrides, owner, annotations)
    return overrides


def _has_overrides(annotations: Annotations) -> bool:
    if not annotations:
        return False
    return not annotations.keys().isdisjoint((MODE, PREFER, UNKNOWN))


def _override(default: Overrides, owner: str, annotations: Mapping[str, str]) -> Overrides:
    problems = list(default.problems)
    mode = _read_word(Mode, owner, MODE, annotations, problems)
    unknown = _read_word(Choice, owner, UNKNOWN, annotations, problems)
    prefer = _read_architecture(owner, annotations, problems)
    return Overrides(mode or default.mode, prefer or default.prefer, unknown or default.unknown, tuple(problems))


def _read_word(
    words: type[_Word], owner: str, key: str, annotations: Mapping[str, str], problems: list[str]
) -> _Word | None:
    value = annotations.get(key)
    if value is None:
        return None
    try:
        return words(value)
    except ValueError:
        problems.append(_problem(owner, key, value, f"one of {', '.join(words)}"))
        return None


def _read_architecture(owner: str, annotations: Mapping[str, str], problems: list[str]) -> str | None:
    value = annotations.get(PREFER)
    if value is None:
        return None
    if not _ARCHITECTURE.fullmatch(value):
        problems.append(_problem(owner, PREFER, value, f"an architecture such as arm64, or {NO_PREFERENCE}"))
        return None
    return normalize_platform("", value).architecture


def _problem(owner: str, key: str, value: str, right: str) -> str:
    shown = value if len(value) <= _QUOTED_CHARACTERS else f"{value[:_QUOTED_CHARACTERS]}…"
    return f"the {owner}'s annotation {key} is {shown!r} and was ignored; it must be {right}"
