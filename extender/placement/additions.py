"""What the webhook adds to a pod: how it is written, recorded in an annotation, and taken back.

The record lets a later pass over other images (another webhook put a sidecar in) narrow or undo an earlier one. A pod's
author can write one too, so it is only a claim: what it names is removed only where it stands exactly so, and only
if we could have written it (a toleration of a rule, `In` on the two platform labels, our schedulerName). What else it
says, or a record that cannot be read, removes nothing. Knows no image and no policy.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec

from extender.kubernetes.core_v1 import PreferredSchedulingTerm, Toleration
from extender.placement.affinity import ARCHITECTURE, OPERATING_SYSTEM, Alternatives
from extender.placement.annotations import ADDED, REASON, SERVICE_KEYS
from extender.placement.patch import Json, JsonObject, look, pointer
from extender.placement.terms import (
    Absence,
    AddedTerm,
    absence,
    and_terms,
    make_absent,
    remove_last,
    take_back_terms,
)

DEFAULT_SCHEDULER = "default-scheduler"

_ANNOTATIONS = ("metadata", "annotations")
ADDED_PATH = (*_ANNOTATIONS, ADDED)
NOTE_PATHS = tuple((*_ANNOTATIONS, key) for key in SERVICE_KEYS if key != ADDED)
"""Where annotations are that the service writes for people to read."""
AFFINITY_PATH = ("spec", "affinity")
TOLERATIONS_PATH = ("spec", "tolerations")
_TERMS = (*AFFINITY_PATH, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = (*AFFINITY_PATH, "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
_SCHEDULER_NAME = "schedulerName"

# Every list and map that is made for an addition and unmade with it, by pointer. Not `spec` and `metadata`: only a part
# of them is in sight here, and no pod is valid without them.
_CONTAINERS = {
    pointer(path[:depth]): path[:depth]
    for path in (_ANNOTATIONS, TOLERATIONS_PATH, _TERMS, _PREFERRED)
    for depth in range(2, len(path) + 1)
}

SchedulerBefore: TypeAlias = Literal["missing", "null", "", "default-scheduler"]
_Item = TypeVar("_Item", Toleration, PreferredSchedulingTerm)


class Additions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What was added to one pod.

    `scheduler_name_was` is what stood where our schedulerName is now. `was` tells, by pointer, which lists and maps had
    to be made, and how they were absent.
    """

    tolerations: tuple[Toleration, ...] = ()
    required: tuple[AddedTerm, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    scheduler_name_was: SchedulerBefore | None = None
    was: Mapping[str, Absence] = {}

    def same_as(self, other: "Additions") -> bool:
        """Whether the pod was given the same, whatever had to be made for it."""
        return msgspec.structs.replace(self, was={}) == msgspec.structs.replace(other, was={})


NOTHING = Additions()
_RECORD = msgspec.json.Decoder(Additions)
_ENCODER = msgspec.json.Encoder()


def read_record(text: Json) -> Additions | None:
    """The record in an annotation's value; None if it is none that we could have written."""
    if not isinstance(text, str):
        return None
    try:
        record = _RECORD.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    indices = [term.index for term in record.required]
    expressions = [term.match_expressions for term in record.required]
    expressions += [term.preference.match_expressions or () for term in record.preferred]
    credible = (
        all(low < high for low, high in zip((-1, *indices), indices, strict=False))
        and not any(term.preference.match_fields for term in record.preferred)
        and all(expressions)
        and all(
            item.operator == "In" and item.key in (ARCHITECTURE, OPERATING_SYSTEM)
            for all_ in expressions
            for item in all_
        )
    )
    return record if credible else None


def write_record(additions: Additions) -> str:
    """The annotation's value."""
    return _ENCODER.encode(additions).decode()


def take_back(
    document: JsonObject, record: Additions | None, tolerations: Sequence[Toleration], scheduler_name: str
) -> Additions:
    """Remove from `document` what `record` names and we could have added; returns what was removed.

    `document` holds the touched parts of a pod and is changed in place; our own annotations go in any case. Of the
    record's tolerations only those among `tolerations` count.
    """
    annotations = look(document, _ANNOTATIONS)
    if isinstance(annotations, dict):
        for key in SERVICE_KEYS:
            annotations.pop(key, None)
    if record is None:
        return NOTHING
    taken = Additions(
        tolerations=_remove(document, TOLERATIONS_PATH, [item for item in record.tolerations if item in tolerations]),
        required=take_back_terms(look(document, _TERMS), record.required),
        preferred=_remove(document, _PREFERRED, record.preferred),
        scheduler_name_was=_take_back_scheduler(document, record.scheduler_name_was, scheduler_name),
    )
    _restore(document, record.was)
    return taken


def add(
    document: JsonObject,
    *,
    tolerations: Sequence[Toleration] = (),
    required: Sequence[Alternatives] = (),
    preferred: Sequence[PreferredSchedulingTerm] = (),
    scheduler_name: str = "",
) -> Additions:
    """Add these to `document`, in place; `required` as in `affinity.Plan`. Returns the record of it.

    The name is for a pod that has none, or the default one; an empty name is none.
    """
    was: dict[str, Absence] = {}
    if tolerations:
        _reach_list(document, TOLERATIONS_PATH, was).extend(_json(item) for item in tolerations)
    terms = and_terms(_reach_list(document, _TERMS, was), required) if any(required) else ()
    if preferred:
        _reach_list(document, _PREFERRED, was).extend(_json(item) for item in preferred)
    return Additions(tuple(tolerations), terms, tuple(preferred), _set_scheduler(document, scheduler_name), was)


def annotate(document: JsonObject, additions: Additions, reason: str) -> Additions:
    """Write the record and, unless empty, the reason into `document`; returns the record as written."""
    was = dict(additions.was)
    if document.get("metadata") is None:
        document["metadata"] = {}
    annotations = cast("JsonObject", _reach(document, _ANNOTATIONS, {}, was))
    additions = msgspec.structs.replace(additions, was=was)
    if reason:
        annotations[REASON] = reason
    annotations[ADDED] = write_record(additions)
    return additions


def _json(value: Toleration | PreferredSchedulingTerm) -> Json:
    return cast("Json", msgspec.json.decode(_ENCODER.encode(value)))


def _reach(document: JsonObject, path: Sequence[str], leaf: Json, was: dict[str, Absence]) -> Json:
    """What stands at `path`, made there (`leaf`) together with its parents where one is missing or null.

    Whoever calls has seen to it that what stands there already has the shapes of core/v1.
    """
    found = document
    for depth, step in enumerate(path, 1):
        if found.get(step) is None:
            was[pointer(path[:depth])] = absence(found, step)
            made = leaf
            for inner in reversed(path[depth:]):
                made = {inner: made}
            found[step] = made
            return leaf
        found = cast("JsonObject", found[step])
    return found


def _reach_list(document: JsonObject, path: Sequence[str], was: dict[str, Absence]) -> list[Json]:
    return cast("list[Json]", _reach(document, path, [], was))


def _restore(document: JsonObject, was: Mapping[str, Absence]) -> None:
    """Undo what was made, where nothing has been put in since."""
    for where, how in was.items():
        path = _CONTAINERS.get(where)
        parent = look(document, path[:-1]) if path else None
        if path and isinstance(parent, dict) and _is_empty(parent.get(path[-1])):
            make_absent(parent, path[-1], how)


def _is_empty(value: Json) -> bool:
    """Whether nothing is in there, at any depth of maps; an item of a list is something, even an empty term."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    return isinstance(value, list) and not value


def _remove(document: JsonObject, path: Sequence[str], items: Sequence[_Item]) -> tuple[_Item, ...]:
    """Each of `items` once, as far as it is in the list at `path`."""
    found = look(document, path)
    if not isinstance(found, list):
        return ()
    return tuple(item for item in dict.fromkeys(items) if remove_last(found, _json(item)))


def _set_scheduler(document: JsonObject, name: str) -> SchedulerBefore | None:
    spec = cast("JsonObject", document["spec"])
    before = spec.get(_SCHEDULER_NAME)
    if name in ("", DEFAULT_SCHEDULER) or before not in (None, "", DEFAULT_SCHEDULER):
        return None
    how: SchedulerBefore = absence(spec, _SCHEDULER_NAME) if before is None else cast("SchedulerBefore", before)
    spec[_SCHEDULER_NAME] = name
    return how


def _take_back_scheduler(document: JsonObject, before: SchedulerBefore | None, name: str) -> SchedulerBefore | None:
    spec = cast("JsonObject", document["spec"])
    if before is None or not name or spec.get(_SCHEDULER_NAME) != name:
        return None
    if before == "missing" or before == "null":  # noqa: PLR1714  # a membership test would not narrow the type
        make_absent(spec, _SCHEDULER_NAME, before)
    else:
        spec[_SCHEDULER_NAME] = before
    return before
