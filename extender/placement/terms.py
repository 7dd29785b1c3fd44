"""Node selector terms as JSON: ANDing requirements to them, and removing these again.

Edits the list in the pod's own JSON, so that fields unknown here stay. `affinity` decides which requirements to AND.
"""

from collections.abc import Sequence
from typing import cast

import msgspec

from extender.kubernetes.core_v1 import NodeSelectorRequirement
from extender.placement.affinity import Alternatives
from extender.placement.patch import Json, JsonObject

_EXPRESSIONS = "matchExpressions"
_FIELDS = "matchFields"


class AddedTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The requirements that were ANDed to the term that is now at `index`.

    `whole`: whether we added the term itself, as a new term or as a copy of the term before it.
    """

    index: int
    match_expressions: tuple[NodeSelectorRequirement, ...]
    whole: bool = False


def and_terms(terms: list[Json], additions: Sequence[Alternatives]) -> tuple[AddedTerm, ...]:
    """ANDs `additions` (as in `affinity.RequiredNodes`) to `terms`, in place. Returns what was added to which term."""
    if not terms:
        terms.extend({_EXPRESSIONS: _json(requirements)} for requirements in additions[0])
        return tuple(AddedTerm(index, requirements, whole=True) for index, requirements in enumerate(additions[0]))
    written: list[Json] = []
    added = []
    for term, alternatives in zip(cast("list[JsonObject]", terms), additions, strict=True):
        present = cast("list[Json] | None", term.get(_EXPRESSIONS))
        for position, requirements in enumerate(alternatives):
            added.append(AddedTerm(len(written), requirements, whole=position > 0))
            written.append({**term, _EXPRESSIONS: [*(present or ()), *_json(requirements)]})
        if not alternatives:
            written.append(term)
    terms[:] = written
    return tuple(added)


def take_back_terms(terms: Json, recorded: Sequence[AddedTerm]) -> tuple[AddedTerm, ...]:
    """Undoes the `recorded` additions that `terms` still has exactly as recorded. Returns those it undid.

    `recorded` is in ascending order of index. A whole term is removed if nothing else was ANDed to it since. A copy is
    removed only if it equals the term it was copied from. Apart from losing the recorded requirements, no remaining
    term matches more nodes than before.
    """
    if not isinstance(terms, list):
        return ()
    taken = [added for added in recorded if added.index < len(terms) and _subtract(terms[added.index], added)]
    for added in reversed(taken):
        index = added.index
        if added.whole and (_is_bare(terms[index]) or (index and terms[index] == terms[index - 1])):
            del terms[index]
    return tuple(taken)


def remove_last(items: list[Json], item: Json) -> bool:
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
    if not all(remove_last(left, requirement) for requirement in _json(added.match_expressions)):
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


def _json(requirements: Sequence[NodeSelectorRequirement]) -> list[Json]:
    return cast("list[Json]", msgspec.json.decode(msgspec.json.encode(requirements)))
