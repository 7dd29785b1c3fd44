"""Node selector terms as JSON: requirements ANDed to them, and taken out again.

Works on the list as it stands in a pod, so that fields unknown here stay. What to AND is `affinity`'s to say.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from extender.kubernetes.core_v1 import NodeSelectorRequirement
from extender.placement.affinity import Alternatives
from extender.placement.patch import Json, JsonObject

Absence: TypeAlias = Literal["missing", "null"]
"""How a field was absent before it was made."""

_EXPRESSIONS = "matchExpressions"
_FIELDS = "matchFields"


class AddedTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What was ANDed to the term that now stands at `index`.

    `whole`: the term itself is ours, made anew or as a copy of the one before it. `was`: how its matchExpressions were
    absent.
    """

    index: int
    match_expressions: tuple[NodeSelectorRequirement, ...]
    whole: bool = False
    was: Absence | None = None


def and_terms(terms: list[Json], additions: Sequence[Alternatives]) -> tuple[AddedTerm, ...]:
    """AND `additions` (as in `affinity.Plan`) to `terms`, in place; returns what stands where then."""
    if not terms:
        terms.extend({_EXPRESSIONS: _json(requirements)} for requirements in additions[0])
        return tuple(AddedTerm(index, requirements, whole=True) for index, requirements in enumerate(additions[0]))
    written: list[Json] = []
    added = []
    for term, alternatives in zip(cast("list[JsonObject]", terms), additions, strict=True):
        present = cast("list[Json] | None", term.get(_EXPRESSIONS))
        was = None if present is not None else absence(term, _EXPRESSIONS)
        for position, requirements in enumerate(alternatives):
            added.append(AddedTerm(len(written), requirements, whole=position > 0, was=was))
            written.append({**term, _EXPRESSIONS: [*(present or ()), *_json(requirements)]})
        if not alternatives:
            written.append(term)
    terms[:] = written
    return tuple(added)


def take_back_terms(terms: Json, recorded: Sequence[AddedTerm]) -> tuple[AddedTerm, ...]:
    """Undo what is `recorded`, by rising index, as far as it stands exactly so; returns what was undone.

    A whole term goes if nothing else was ANDed to it since; a copy, only if it equals the one it was made from. Either
    way no term is left that matches more nodes than without the record, but for the requirements themselves.
    """
    if not isinstance(terms, list):
        return ()
    taken = [added for added in recorded if added.index < len(terms) and _subtract(terms[added.index], added)]
    for added in reversed(taken):
        index = added.index
        if added.whole and (_is_bare(terms[index]) or (index and terms[index] == terms[index - 1])):
            del terms[index]
    return tuple(taken)


def absence(parent: JsonObject, key: str) -> Absence:
    """How `key`, which has no value in `parent`, is absent."""
    return "null" if key in parent else "missing"


def make_absent(parent: JsonObject, key: str, how: Absence) -> None:
    """Take `key` out of `parent`, or leave it null."""
    if how == "null":
        parent[key] = None
    else:
        del parent[key]


def remove_last(items: list[Json], item: Json) -> bool:
    """Whether `item` was among `items`; of equals the last one goes, since ours were put last."""
    for index in reversed(range(len(items))):
        if items[index] == item:
            del items[index]
            return True
    return False


def _subtract(term: Json, added: AddedTerm) -> bool:
    """Take the requirements out if all are there and, unless the term is ours, something is left that it asks for."""
    present = term.get(_EXPRESSIONS) if isinstance(term, dict) else None
    if not isinstance(term, dict) or not isinstance(present, list):
        return False
    left = present.copy()
    if not all(remove_last(left, requirement) for requirement in _json(added.match_expressions)):
        return False
    if not (left or added.whole or term.get(_FIELDS)):
        return False
    term[_EXPRESSIONS] = left
    if not left and added.was:
        make_absent(term, _EXPRESSIONS, added.was)
    return True


def _is_bare(term: Json) -> bool:
    return isinstance(term, dict) and not any(term.values())


def _json(requirements: Sequence[NodeSelectorRequirement]) -> list[Json]:
    return cast("list[Json]", msgspec.json.decode(msgspec.json.encode(requirements)))
