"""What the webhook adds to a pod: writing it, recording it in an annotation, and taking it back.

The record lets a later pass over other images (after another webhook added a sidecar) narrow or undo an earlier pass. A
pod's author can write a record too, so it is not trusted. An item that it names is removed only if the pod has exactly
that item and we could have written it: a toleration of a rule, `In` on a platform label, the requirement that no node
satisfies, or our schedulerName. Other items, and records that cannot be read, remove nothing. `planning` decides what
is added, as the record of it. Edits the pod's own JSON, so that fields unknown here stay.
"""

import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec

from extender.kubernetes.core_v1 import (
    NodeSelectorRequirement,
    PreferredSchedulingTerm,
    Toleration,
)
from extender.kubernetes.documents import Json, JsonObject, reach, value_at
from extender.placement.annotations import ADDED, PLATFORMS, REASON, SERVICE_KEYS
from extender.placement.bounds import RECORD_CHARACTERS, RECORD_ITEMS
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM

DEFAULT_SCHEDULER = "default-scheduler"

_ANNOTATIONS = ("metadata", "annotations")
ADDED_PATH = (*_ANNOTATIONS, ADDED)
NOTE_PATHS = tuple((*_ANNOTATIONS, key) for key in SERVICE_KEYS if key != ADDED)
"""The paths of the annotations that the service writes for people and policies to read."""
AFFINITY_PATH = ("spec", "affinity")
TOLERATIONS_PATH = ("spec", "tolerations")
TERMS_PATH = (*AFFINITY_PATH, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = (*AFFINITY_PATH, "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
_SCHEDULER_NAME = "schedulerName"
_EXPRESSIONS, _FIELDS = "matchExpressions", "matchFields"

SchedulerBefore: TypeAlias = Literal["missing", "", "default-scheduler"]
_Item = TypeVar("_Item", Toleration, PreferredSchedulingTerm)

NO_NODE = NodeSelectorRequirement(ARCHITECTURE, "In", ("no-common-platform",))
"""A requirement that no node satisfies, for pods that must wait since every node would be wrong.

Its label is one that autoscalers know, and that GKE Autopilot admits.
"""

Requirements = tuple[NodeSelectorRequirement, ...]


class AddedTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The requirements that are ANDed to the term at `index`. `whole`: whether we add the term itself."""

    index: int
    match_expressions: Requirements
    whole: bool = False


class Additions(msgspec.Struct, frozen=True, dict=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What is added to one pod, as it is recorded.

    `scheduler_name_was` is the value that our schedulerName replaced. `is_preferring` is as in `Overrides`: it adds
    nothing, and is recorded for those who decide later.
    """

    tolerations: tuple[Toleration, ...] = ()
    required: tuple[AddedTerm, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    scheduler_name_was: SchedulerBefore | None = None
    is_preferring: bool | None = None

    @functools.cached_property
    def record(self) -> str:
        """The value of the annotation that records them."""
        return _ENCODER.encode(self).decode()

    @property
    def has_room(self) -> bool:
        """Whether no list of them is longer than what is read."""
        return max(map(len, (self.tolerations, self.required, self.preferred))) <= RECORD_ITEMS

    @property
    def is_recordable(self) -> bool:
        """Whether `read_record` takes the record, as it is not too large."""
        return self.has_room and len(self.record) <= RECORD_CHARACTERS


NOTHING = Additions()
_LABELS = frozenset({ARCHITECTURE, OPERATING_SYSTEM})
_RECORD = msgspec.json.Decoder(Additions)
_ENCODER = msgspec.json.Encoder()


def read_record(text: Json) -> Additions | None:
    """The record in an annotation's value; None if we could not have written it."""
    if not isinstance(text, str) or len(text) > RECORD_CHARACTERS:
        return None
    try:
        record = _RECORD.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    indices = [term.index for term in record.required]
    expressions = [term.match_expressions for term in record.required]
    expressions += [term.preference.match_expressions or () for term in record.preferred]
    credible = (
        record.has_room
        and all(low < high for low, high in zip((-1, *indices), indices, strict=False))
        and not any(term.preference.match_fields for term in record.preferred)
        and all(expressions)
        and all(
            (item.operator == "In" and item.key in _LABELS) or item == NO_NODE for all_ in expressions for item in all_
        )
    )
    return record if credible else None


def take_back(
    document: JsonObject, record: Additions | None, tolerations: Sequence[Toleration], scheduler_name: str
) -> Additions:
    """Removes from `document` what `record` names and we could have added. Returns what was removed.

    `document` holds the touched parts of a pod and is changed in place. Our own annotations are always removed. Of the
    record's tolerations only those among `tolerations` are removed.
    """
    annotations = value_at(document, *_ANNOTATIONS)
    if isinstance(annotations, dict) and [annotations.pop(key) for key in SERVICE_KEYS if key in annotations]:
        prune(document, _ANNOTATIONS)
    if record is None:
        return NOTHING
    taken = Additions(
        tolerations=_remove(document, TOLERATIONS_PATH, [item for item in record.tolerations if item in tolerations]),
        required=_take_back_terms(value_at(document, *TERMS_PATH), record.required),
        preferred=_remove(document, _PREFERRED, record.preferred),
        scheduler_name_was=_take_back_scheduler(document, record.scheduler_name_was, scheduler_name),
        is_preferring=record.is_preferring,
    )
    for path, items in (
        (TOLERATIONS_PATH, taken.tolerations),
        (TERMS_PATH, taken.required),
        (_PREFERRED, taken.preferred),
    ):
        if items:
            prune(document, path)
    return taken


def add(document: JsonObject, additions: Additions, scheduler_name: str = "") -> None:
    """Writes the additions into `document`, in place. `scheduler_name` is the one that replaces another."""
    for path, items in (
        (TOLERATIONS_PATH, additions.tolerations),
        (_PREFERRED, additions.preferred),
    ):
        if items:
            reach(document, path, list[Json]()).extend(_json(item) for item in items)
    for added in additions.required:
        terms = reach(document, TERMS_PATH, list[JsonObject]())
        if added.whole:
            terms.append({})
        term = terms[added.index]
        present = cast("list[Json] | None", term.get(_EXPRESSIONS))
        term[_EXPRESSIONS] = [*(present or ()), *map(_json, added.match_expressions)]
    if additions.scheduler_name_was is not None:
        cast("JsonObject", document["spec"])[_SCHEDULER_NAME] = scheduler_name


def replaced_scheduler(before: str | None, name: str) -> SchedulerBefore | None:
    """What the record says of a schedulerName that `name` replaces: only a missing, empty or default one is."""
    if name in ("", DEFAULT_SCHEDULER) or before not in (None, "", DEFAULT_SCHEDULER):
        return None
    return "missing" if before is None else cast("SchedulerBefore", before)


def annotate(document: JsonObject, additions: Additions, reason: str, platforms: str | None = None) -> None:
    """Writes the record, the reason unless it is empty, and any platforms."""
    annotations = reach(document, _ANNOTATIONS, dict[str, Json]())
    if reason:
        annotations[REASON] = reason
    if platforms is not None:
        annotations[PLATFORMS] = platforms
    annotations[ADDED] = additions.record


def _json(value: Toleration | NodeSelectorRequirement | PreferredSchedulingTerm) -> Json:
    return cast("Json", msgspec.json.decode(_ENCODER.encode(value)))


def prune(document: JsonObject, path: Sequence[str]) -> None:
    """Removes the list or map at `path` if it is empty, and then the maps around it that are: they mean nothing."""
    for depth in range(len(path) - 1, 0, -1):
        parent = value_at(document, *path[:depth])
        if not isinstance(parent, dict) or parent.get(path[depth]):
            return
        parent.pop(path[depth], None)


def _remove(document: JsonObject, path: Sequence[str], items: Sequence[_Item]) -> tuple[_Item, ...]:
    """Removes each of `items` once from the list at `path`. Returns those that were in it."""
    found = value_at(document, *path)
    if not isinstance(found, list):
        return ()
    several = [item for index, item in enumerate(items) if item not in items[:index]]
    return tuple(item for item in several if _remove_last(found, _json(item)))


def _take_back_scheduler(document: JsonObject, before: SchedulerBefore | None, name: str) -> SchedulerBefore | None:
    spec = cast("JsonObject", document["spec"])
    if before is None or not name or spec.get(_SCHEDULER_NAME) != name:
        return None
    if before == "missing":
        del spec[_SCHEDULER_NAME]
    else:
        spec[_SCHEDULER_NAME] = before
    return before


def _take_back_terms(terms: Json, recorded: Sequence[AddedTerm]) -> tuple[AddedTerm, ...]:
    """Undoes the `recorded` additions that `terms` still has exactly as recorded. Returns those it undid.

    A whole term is removed if nothing else was ANDed to it since. Apart from losing the recorded requirements, no
    remaining term matches more nodes than before.
    """
    if not isinstance(terms, list):
        return ()
    taken = [added for added in recorded if added.index < len(terms) and _subtract(terms[added.index], added)]
    for added in reversed(taken):
        if added.whole and _is_bare(terms[added.index]):
            del terms[added.index]
    return tuple(taken)


def _remove_last(items: list[Json], item: Json) -> bool:
    """Removes the last item equal to `item`, as ours were appended. Returns whether there was one."""
    for index in reversed(range(len(items))):
        if items[index] == item:
            del items[index]
            return True
    return False


def _subtract(term: Json, added: AddedTerm) -> bool:
    """Removes the requirements if the term has all of them. A term that we did not add must keep another requirement.

    Returns whether they were removed.
    """
    present = term.get(_EXPRESSIONS) if isinstance(term, dict) else None
    if not isinstance(term, dict) or not isinstance(present, list):
        return False
    left = present.copy()
    if not all(_remove_last(left, _json(requirement)) for requirement in added.match_expressions):
        return False
    if not (left or added.whole or term.get(_FIELDS)):
        return False
    if left:
        term[_EXPRESSIONS] = left
    else:
        del term[_EXPRESSIONS]
    return True


def _is_bare(term: Json) -> bool:
    return isinstance(term, dict) and not any(term.values())
