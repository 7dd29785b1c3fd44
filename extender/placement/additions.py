"""What the webhook adds to a pod: writing it, recording it in an annotation, and taking it back.

The record lets a later pass over other images (after another webhook added a sidecar) narrow or undo an earlier pass. A
pod's author can write a record too, so it is not trusted. An item that it names is removed only if the pod has exactly
that item and we could have written it: a toleration of a rule, an entry of the nodeSelector for a platform label, `In`
or `NotIn` on a platform or level label, the requirement that no node satisfies, or our schedulerName.
Other items, and records that cannot be read, remove nothing. Depends on neither images nor policy.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec

from extender.kubernetes.core_v1 import PreferredSchedulingTerm, Toleration, TopologySpreadConstraint
from extender.placement.affinity import NO_NODE
from extender.placement.bounds import RECORD_CHARACTERS, RECORD_ITEMS
from extender.placement.nodes import ARCHITECTURE, LEVEL_LABEL, OPERATING_SYSTEM
from extender.placement.patch import Json, JsonObject, look, pointer
from extender.placement.planning import Wanted
from extender.placement.policy import ADDED, PLATFORMS, REASON, SERVICE_KEYS
from extender.placement.spread import KEYS, WEIGHED
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
"""The paths of the annotations that the service writes for people and policies to read."""
AFFINITY_PATH = ("spec", "affinity")
TOLERATIONS_PATH = ("spec", "tolerations")
SELECTOR_PATH = ("spec", "nodeSelector")
SPREAD_PATH = ("spec", "topologySpreadConstraints")
TERMS_PATH = (*AFFINITY_PATH, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = (*AFFINITY_PATH, "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
_SCHEDULER_NAME = "schedulerName"

# The path of every list and map that is created for an addition and removed with it, by pointer. `spec` and `metadata`
# are not among them: we see only a part of them here, and no pod is valid without them.
_CONTAINERS = {
    pointer(path[:depth]): path[:depth]
    for path in (_ANNOTATIONS, TOLERATIONS_PATH, SELECTOR_PATH, SPREAD_PATH, TERMS_PATH, _PREFERRED)
    for depth in range(2, len(path) + 1)
}

SchedulerBefore: TypeAlias = Literal["missing", "null", "", "default-scheduler"]
_Item = TypeVar("_Item", Toleration, PreferredSchedulingTerm, TopologySpreadConstraint)


class Additions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What was added to one pod.

    `scheduler_name_was` is the value that our schedulerName replaced. `was` has the topmost lists and maps that were
    created, by pointer, and how each was absent before.
    """

    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = {}
    required: tuple[AddedTerm, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    spread: tuple[TopologySpreadConstraint, ...] = ()
    scheduler_name_was: SchedulerBefore | None = None
    was: Mapping[str, Absence] = {}

    def same_as(self, other: "Additions") -> bool:
        """Whether both added the same, apart from the lists and maps that were created for it."""
        return msgspec.structs.replace(self, was={}) == msgspec.structs.replace(other, was={})

    @property
    def has_room(self) -> bool:
        """Whether no list of them is longer than what is read."""
        return max(map(len, (self.tolerations, self.required, self.preferred, self.spread))) <= RECORD_ITEMS


NOTHING = Additions()
_LABELS = frozenset({ARCHITECTURE, OPERATING_SYSTEM, LEVEL_LABEL})
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
    preferred = [term.preference.match_expressions or () for term in record.preferred]
    expressions += [requirements[:1] for requirements in preferred]  # behind it are labels of the operator's
    credible = (
        record.has_room
        and all(low < high for low, high in zip((-1, *indices), indices, strict=False))
        and record.node_selector.keys() <= _LABELS
        and not any(term.preference.match_fields for term in record.preferred)
        and all(each.topology_key in KEYS and each.when_unsatisfiable == WEIGHED for each in record.spread)
        and all(expressions)
        and all(item.operator == "In" for requirements in preferred for item in requirements)
        and all(
            (item.operator in ("In", "NotIn") and item.key in _LABELS) or item == NO_NODE
            for all_ in expressions
            for item in all_
        )
    )
    return record if credible else None


def write_record(additions: Additions) -> str:
    """The value of the annotation that records `additions`."""
    return _ENCODER.encode(additions).decode()


def is_recordable(additions: Additions) -> bool:
    """Whether `read_record` takes the record of `additions`, as it is not too large."""
    return additions.has_room and len(write_record(additions)) <= RECORD_CHARACTERS


def take_back(
    document: JsonObject, record: Additions | None, tolerations: Sequence[Toleration], scheduler_name: str
) -> Additions:
    """Removes from `document` what `record` names and we could have added. Returns what was removed.

    `document` holds the touched parts of a pod and is changed in place. Our own annotations are always removed. Of the
    record's tolerations only those among `tolerations` are removed.
    """
    annotations = look(document, _ANNOTATIONS)
    if isinstance(annotations, dict):
        for key in SERVICE_KEYS:
            annotations.pop(key, None)
    if record is None:
        return NOTHING
    taken = Additions(
        tolerations=_remove(document, TOLERATIONS_PATH, [item for item in record.tolerations if item in tolerations]),
        node_selector=_take_back_selector(look(document, SELECTOR_PATH), record.node_selector),
        required=take_back_terms(look(document, TERMS_PATH), record.required),
        preferred=_remove(document, _PREFERRED, record.preferred),
        spread=_remove(document, SPREAD_PATH, record.spread),
        scheduler_name_was=_take_back_scheduler(document, record.scheduler_name_was, scheduler_name),
    )
    _restore(document, record.was)
    return taken


def add(document: JsonObject, wanted: Wanted, scheduler_name: str = "") -> Additions:
    """Adds what is `wanted` to `document`, in place. Returns the record of it.

    `scheduler_name` replaces only an absent, empty or default name; if it is empty or the default, nothing changes.
    """
    was: dict[str, Absence] = {}
    selector, required = wanted.required.selector, wanted.required.additions
    for path, items in (
        (TOLERATIONS_PATH, wanted.tolerations),
        (_PREFERRED, wanted.preferred),
        (SPREAD_PATH, wanted.spread),
    ):
        if items:
            _reach_list(document, path, was).extend(_json(item) for item in items)
    if selector:
        cast("JsonObject", _reach(document, SELECTOR_PATH, {}, was)).update(selector)
    return Additions(
        tolerations=wanted.tolerations,
        node_selector=dict(selector),
        required=and_terms(_reach_list(document, TERMS_PATH, was), required) if any(required) else (),
        preferred=wanted.preferred,
        spread=wanted.spread,
        scheduler_name_was=_set_scheduler(document, scheduler_name),
        was=was,
    )


def annotate(document: JsonObject, additions: Additions, reason: str, platforms: str | None = None) -> Additions:
    """Writes the record, the reason unless it is empty, and any platforms. Returns the record as written."""
    was = dict(additions.was)
    if document.get("metadata") is None:
        document["metadata"] = {}
    annotations = cast("JsonObject", _reach(document, _ANNOTATIONS, {}, was))
    additions = msgspec.structs.replace(additions, was=was)
    if reason:
        annotations[REASON] = reason
    if platforms is not None:
        annotations[PLATFORMS] = platforms
    annotations[ADDED] = write_record(additions)
    return additions


def _json(value: Toleration | PreferredSchedulingTerm | TopologySpreadConstraint) -> Json:
    return cast("Json", msgspec.json.decode(_ENCODER.encode(value)))


def _reach(document: JsonObject, path: Sequence[str], leaf: Json, was: dict[str, Absence]) -> Json:
    """The value at `path`, created as `leaf` together with its parents where they are missing or null.

    `was` records the topmost one that was created. The caller ensures that values already there have the shapes of
    core/v1.
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
    """Makes the lists and maps in `was` absent again, except those to which something was added since."""
    for where, how in was.items():
        path = _CONTAINERS.get(where)
        parent = look(document, path[:-1]) if path else None
        if path and isinstance(parent, dict) and _is_empty(parent.get(path[-1])):
            make_absent(parent, path[-1], how)


def _is_empty(value: Json) -> bool:
    """Whether `value` is an empty list, or a map whose values are all empty; a list of empty terms is not empty."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    return isinstance(value, list) and not value


def _remove(document: JsonObject, path: Sequence[str], items: Sequence[_Item]) -> tuple[_Item, ...]:
    """Removes each of `items` once from the list at `path`. Returns those that were in it."""
    found = look(document, path)
    if not isinstance(found, list):
        return ()
    several = [item for index, item in enumerate(items) if item not in items[:index]]
    return tuple(item for item in several if remove_last(found, _json(item)))


def _take_back_selector(present: Json, recorded: Mapping[str, str]) -> Mapping[str, str]:
    """Removes the `recorded` entries that `present` has with the same value. Returns those."""
    if not isinstance(present, dict):
        return {}
    taken = {key: value for key, value in recorded.items() if present.get(key) == value}
    for key in taken:
        del present[key]
    return taken


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
