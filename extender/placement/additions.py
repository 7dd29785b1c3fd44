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
from extender.kubernetes.documents import Json, JsonObject, list_at, map_at, put, value_at, without
from extender.placement.annotations import ADDED, SERVICE_KEYS
from extender.placement.bounds import RECORD_CHARACTERS, RECORD_ITEMS
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM

DEFAULT_SCHEDULER = "default-scheduler"

ANNOTATIONS_PATH = ("metadata", "annotations")
ADDED_PATH = (*ANNOTATIONS_PATH, ADDED)
NOTE_PATHS = tuple((*ANNOTATIONS_PATH, key) for key in SERVICE_KEYS if key != ADDED)
"""The paths of the annotations that the service writes for people and policies to read."""
AFFINITY_PATH = ("spec", "affinity")
TOLERATIONS_PATH = ("spec", "tolerations")
TERMS_PATH = (*AFFINITY_PATH, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = (*AFFINITY_PATH, "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
_SCHEDULER_NAME = ("spec", "schedulerName")
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
) -> tuple[JsonObject, Additions]:
    """The document without what `record` names and we could have added, and what that was.

    `document` holds the touched parts of a pod. Our own annotations are always removed. Of the record's tolerations
    only those among `tolerations` are removed.
    """
    annotations = map_at(document, *ANNOTATIONS_PATH)
    if not annotations.keys().isdisjoint(SERVICE_KEYS):
        others = {key: value for key, value in annotations.items() if key not in SERVICE_KEYS}
        document = put(document, ANNOTATIONS_PATH, others)
    if record is None:
        return document, NOTHING
    offered = [item for item in record.tolerations if item in tolerations]
    document, taken_tolerations = _remove(document, TOLERATIONS_PATH, offered)
    document, taken_terms = _take_back_terms(document, record.required)
    document, taken_preferred = _remove(document, _PREFERRED, record.preferred)
    before = record.scheduler_name_was
    if not scheduler_name or value_at(document, *_SCHEDULER_NAME) != scheduler_name:
        before = None
    if before is not None:
        document = put(document, _SCHEDULER_NAME, None if before == "missing" else before)
    return document, Additions(taken_tolerations, taken_terms, taken_preferred, before, record.is_preferring)


def add(document: JsonObject, additions: Additions, scheduler_name: str = "") -> JsonObject:
    """The document with the additions; `scheduler_name` is the one that replaces another."""
    for path, items in (
        (TOLERATIONS_PATH, additions.tolerations),
        (_PREFERRED, additions.preferred),
    ):
        if items:
            document = put(document, path, [*list_at(document, *path), *_json(items)])
    if additions.required:
        terms = [*list_at(document, *TERMS_PATH), *({} for added in additions.required if added.whole)]
        for added in additions.required:
            term = terms[added.index]
            present = term.get(_EXPRESSIONS) or ()
            terms[added.index] = {**term, _EXPRESSIONS: [*present, *_json(added.match_expressions)]}
        document = put(document, TERMS_PATH, terms)
    return document if additions.scheduler_name_was is None else put(document, _SCHEDULER_NAME, scheduler_name)


def replaced_scheduler(before: str | None, name: str) -> SchedulerBefore | None:
    """What the record says of a schedulerName that `name` replaces: only a missing, empty or default one is."""
    if name in ("", DEFAULT_SCHEDULER) or before not in (None, "", DEFAULT_SCHEDULER):
        return None
    return "missing" if before is None else cast("SchedulerBefore", before)


def _json(items: Sequence[Toleration | NodeSelectorRequirement | PreferredSchedulingTerm]) -> list[Json]:
    return cast("list[Json]", msgspec.json.decode(_ENCODER.encode(items)))


def _remove(document: JsonObject, path: Sequence[str], items: Sequence[_Item]) -> tuple[JsonObject, tuple[_Item, ...]]:
    """The document without each of `items`, once, in the list at `path`, and those that were in it."""
    left = [*list_at(document, *path)]
    removed = tuple(item for item in dict.fromkeys(items) if _remove_last(left, *_json([item])))
    return put(document, path, left) if removed else document, removed


def _take_back_terms(document: JsonObject, recorded: Sequence[AddedTerm]) -> tuple[JsonObject, tuple[AddedTerm, ...]]:
    """Undoes the `recorded` additions that the terms still have exactly as recorded. Returns also those it undid.

    A whole term is removed if nothing else was ANDed to it since. Apart from losing the recorded requirements, no
    remaining term matches more nodes than before.
    """
    terms, taken = [*list_at(document, *TERMS_PATH)], list[AddedTerm]()
    for added in recorded:
        left = _subtract(terms[added.index], added) if added.index < len(terms) else None
        if left is not None:
            terms[added.index] = left
            taken.append(added)
    for added in reversed(taken):
        if added.whole and not any(terms[added.index].values()):
            del terms[added.index]
    return put(document, TERMS_PATH, terms) if taken else document, tuple(taken)


def _remove_last(items: list[Json], item: Json) -> bool:
    """Removes the last item equal to `item`, as ours were appended. Returns whether there was one."""
    for index in reversed(range(len(items))):
        if items[index] == item:
            del items[index]
            return True
    return False


def _subtract(term: Json, added: AddedTerm) -> "JsonObject | None":
    """The term without the requirements; None if it does not have all of them.

    None too if nothing else is in a term that we did not add.
    """
    left = [*list_at(term, _EXPRESSIONS)]
    if not isinstance(term, dict) or not all(_remove_last(left, each) for each in _json(added.match_expressions)):
        return None
    if not (left or added.whole or term.get(_FIELDS)):
        return None
    return {**term, _EXPRESSIONS: left} if left else without(term, _EXPRESSIONS)
