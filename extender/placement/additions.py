"""What the webhook adds to a pod: how it is written, recorded in an annotation, and taken back.

The record lets a later pass over other images (another webhook put a sidecar in) narrow or undo an earlier one. A pod's
author can write one too, so it is only a claim: what it names is removed only where it stands exactly so, and only
if we could have written it (a toleration of a rule, `In` on the two platform labels, our schedulerName). What else it
says, or a record that cannot be read, removes nothing. Knows no image and no policy.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from extender.kubernetes.core_v1 import Toleration
from extender.placement.affinity import ARCHITECTURE, OPERATING_SYSTEM, Alternatives, PreferredTerm, Requirement
from extender.placement.annotations import ADDED, REASON
from extender.placement.patch import Json, JsonObject, look, pointer

DEFAULT_SCHEDULER = "default-scheduler"

_ANNOTATIONS = ("metadata", "annotations")
_TOLERATIONS = ("spec", "tolerations")
_NODE_AFFINITY = ("spec", "affinity", "nodeAffinity")
_TERMS = (*_NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = (*_NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
_SCHEDULER_NAME = "schedulerName"

# Every list and map that is ever made for an addition, by pointer.
_CONTAINERS = {
    pointer(path[:depth]): path[:depth]
    for path in (_ANNOTATIONS, _TOLERATIONS, _TERMS, _PREFERRED)
    for depth in range(1, len(path) + 1)
    if path[:depth] != ("spec",)
}

Absence: TypeAlias = Literal["missing", "null"]


class _Recorded(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    pass


class AddedTerm(_Recorded, frozen=True):
    """What was ANDed to the node selector term that now stands at `index`.

    `whole`: the term itself is ours, made anew or as a copy of the one before it. `was`: how matchExpressions was absent.
    """

    index: int
    match_expressions: tuple[Requirement, ...]
    whole: bool = False
    was: Absence | None = None


class Additions(_Recorded, frozen=True):
    """What was added to one pod. `was` tells, by pointer, which lists and maps had to be made."""

    tolerations: tuple[Toleration, ...] = ()
    required: tuple[AddedTerm, ...] = ()
    preferred: tuple[PreferredTerm, ...] = ()
    scheduler_name_was: Literal["missing", "null", "", "default-scheduler"] | None = None
    was: Mapping[str, Absence] = {}

    def same_as(self, other: "Additions") -> bool:
        """Whether the pod was given the same, whatever had to be made for it."""
        return msgspec.structs.replace(self, was={}) == msgspec.structs.replace(other, was={})


NOTHING = Additions()


def read_record(text: Json) -> Additions | None:
    """The record in an annotation's value; None if it is none that we could have written."""
    if not isinstance(text, str):
        return None
    try:
        record = _RECORD.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    indices = [term.index for term in record.required]
    requirements = [item for term in record.required for item in term.match_expressions]
    requirements += [item for term in record.preferred for item in term.preference.match_expressions or ()]
    credible = (
        all(low < high for low, high in zip((-1, *indices), indices, strict=False))
        and all(term.match_expressions for term in record.required)
        and all(term.preference.match_expressions and not term.preference.match_fields for term in record.preferred)
        and all(item.operator == "In" and item.key in (ARCHITECTURE, OPERATING_SYSTEM) for item in requirements)
    )
    return record if credible else None


def write_record(additions: Additions) -> str:
    """The annotation's value."""
    return _ENCODER.encode(additions).decode()


def take_back(
    document: JsonObject, record: Additions | None, tolerations: Sequence[Toleration], scheduler_name: str
) -> Additions:
    """Remove from `document` what `record` names and we could have added; returns what was removed.

    `document` is changed in place: the touched parts of a pod. Our own two annotations go in any case.
    """
    annotations = look(document, _ANNOTATIONS)
    if isinstance(annotations, dict):
        annotations.pop(ADDED, None)
        annotations.pop(REASON, None)
    if record is None:
        return NOTHING
    taken = Additions(
        tolerations=_remove(document, _TOLERATIONS, [item for item in record.tolerations if item in tolerations]),
        required=_take_back_terms(document, record.required),
        preferred=_remove(document, _PREFERRED, record.preferred),
        scheduler_name_was=_take_back_scheduler(document, record, scheduler_name),
    )
    _restore(document, record.was)
    return taken


def add(
    document: JsonObject,
    *,
    tolerations: Sequence[Toleration] = (),
    required: Sequence[Alternatives] = (),
    preferred: Sequence[PreferredTerm] = (),
    scheduler_name: str = "",
) -> Additions:
    """Add these to `document`, in place; `required` as in `affinity.Plan`. Returns the record of it."""
    was: dict[str, Absence] = {}
    if tolerations:
        _reach_list(document, _TOLERATIONS, was).extend(_json(item) for item in tolerations)
    terms = _and_terms(_reach_list(document, _TERMS, was), required) if any(required) else ()
    if preferred:
        _reach_list(document, _PREFERRED, was).extend(_json(item) for item in preferred)
    return Additions(tuple(tolerations), terms, tuple(preferred), _set_scheduler(document, scheduler_name), was)


def annotate(document: JsonObject, additions: Additions, reason: str) -> Additions:
    """Write the record and, unless empty, the reason into `document`; returns the record as written."""
    was = dict(additions.was)
    annotations = cast("JsonObject", _reach(document, _ANNOTATIONS, {}, was))
    additions = msgspec.structs.replace(additions, was=was)
    if reason:
        annotations[REASON] = reason
    annotations[ADDED] = write_record(additions)
    return additions


_RECORD = msgspec.json.Decoder(Additions)
_ENCODER = msgspec.json.Encoder()


def _json(value: Toleration | PreferredTerm | Requirement) -> Json:
    return cast("Json", msgspec.json.decode(_ENCODER.encode(value)))


def _reach(document: JsonObject, path: Sequence[str], leaf: Json, was: dict[str, Absence]) -> Json:
    """What stands at `path`, made there (`leaf`) together with its parents where one is missing or null.

    Whoever calls has seen to it that what stands there already has the shapes of core/v1.
    """
    found = document
    for depth, step in enumerate(path, 1):
        if found.get(step) is None:
            was[pointer(path[:depth])] = "null" if step in found else "missing"
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
    """Undo what was made, innermost last made first, where nothing has been put in since."""
    for where, absence in reversed(list(was.items())):
        path = _CONTAINERS.get(where, ())
        parent = look(document, path[:-1]) if path else None
        if isinstance(parent, dict) and _is_empty(parent.get(path[-1])):
            _make_absent(parent, path[-1], absence)


def _make_absent(parent: JsonObject, key: str, absence: Absence) -> None:
    if absence == "null":
        parent[key] = None
    else:
        del parent[key]


def _is_empty(value: Json) -> bool:
    """Whether nothing is in there, at any depth of maps; an item of a list is something, even an empty term."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    return isinstance(value, list) and not value


def _and_terms(terms: list[Json], additions: Sequence[Alternatives]) -> tuple[AddedTerm, ...]:
    if not terms:
        made = additions[0]
        terms.extend({"matchExpressions": [_json(item) for item in requirements]} for requirements in made)
        return tuple(AddedTerm(index, requirements, whole=True) for index, requirements in enumerate(made))
    written: list[Json] = []
    added = []
    for term, alternatives in zip(cast("list[JsonObject]", terms), additions, strict=True):
        present = cast("list[Json] | None", term.get("matchExpressions"))
        was = None if present is not None else _absence(term, "matchExpressions")
        for place, requirements in enumerate(alternatives):
            added.append(AddedTerm(len(written), requirements, whole=place > 0, was=was))
            written.append({**term, "matchExpressions": [*(present or ()), *map(_json, requirements)]})
        if not alternatives:
            written.append(term)
    terms[:] = written
    return tuple(added)


def _absence(parent: JsonObject, key: str) -> Absence:
    return "null" if key in parent else "missing"


def _take_back_terms(document: JsonObject, recorded: Sequence[AddedTerm]) -> tuple[AddedTerm, ...]:
    terms = look(document, _TERMS)
    if not isinstance(terms, list):
        return ()
    taken = [added for added in recorded if added.index < len(terms) and _subtract(terms[added.index], added)]
    for added in reversed(taken):
        index = added.index
        if added.whole and (not _has_requirements(terms[index]) or (index and terms[index] == terms[index - 1])):
            del terms[index]
    return tuple(taken)


def _subtract(term: Json, added: AddedTerm) -> bool:
    """Take the requirements out of `term` if all are there and the term, unless it is ours, has others besides."""
    present = term.get("matchExpressions") if isinstance(term, dict) else None
    if not isinstance(term, dict) or not isinstance(present, list):
        return False
    left = present.copy()
    for requirement in map(_json, added.match_expressions):
        if not _remove_last(left, requirement):
            return False
    if not (left or added.whole or term.get("matchFields")):
        return False
    term["matchExpressions"] = left
    if not left and added.was:
        _make_absent(term, "matchExpressions", added.was)
    return True


def _has_requirements(term: Json) -> bool:
    return isinstance(term, dict) and bool(term.get("matchExpressions") or term.get("matchFields"))


_Item = Toleration | PreferredTerm


def _remove[Item: _Item](document: JsonObject, path: Sequence[str], items: Sequence[Item]) -> tuple[Item, ...]:
    found = look(document, path)
    if not isinstance(found, list):
        return ()
    return tuple(item for item in items if _remove_last(found, _json(item)))


def _remove_last(items: list[Json], item: Json) -> bool:
    """Ours were put last, so of equals the last one goes."""
    for index in reversed(range(len(items))):
        if items[index] == item:
            del items[index]
            return True
    return False


def _set_scheduler(
    document: JsonObject, name: str
) -> Literal["missing", "null", "", "default-scheduler"] | None:
    spec = document["spec"]
    ...
