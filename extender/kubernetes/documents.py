"""JSON as plain values, in which every part may be missing, null, or of another type than the reader expects."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"


def value_at(document: object, *path: str | int) -> Json:
    """The value to which these keys and indices lead; None if it is null or missing."""
    found: Any = document
    for step in path:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    return found  # type: ignore[no-any-return]  # JSON has no other values


def map_at(document: object, *path: str | int) -> dict[str, Any]:
    """The map to which these keys and indices lead, for the caller to read or change; a new one if there is none."""
    found = value_at(document, *path)
    return found if isinstance(found, dict) else {}


def list_at(document: object, *path: str | int) -> list[Any]:
    """The list to which these keys and indices lead, for the caller to read or change; a new one if there is none."""
    found = value_at(document, *path)
    return found if isinstance(found, list) else []


def put(document: JsonObject, path: Sequence[str], value: Json) -> JsonObject:
    """A document with this value at the path, which shares all else with `document`.

    An empty map or list, or null, means nothing: it is left out, with the maps that it leaves empty below the first
    step. The caller ensures that values already there have the shapes of core/v1.
    """
    return {**document, path[0]: _put(document.get(path[0]), path[1:], value)}


def _put(around: Json, path: Sequence[str], value: Json) -> JsonObject:
    found, step = cast("JsonObject", around or {}), path[0]
    inner = _put(found.get(step), path[1:], value) if len(path) > 1 else value
    return without(found, step) if inner in ({}, [], None) else {**found, step: inner}


def without(document: JsonObject, *path: str) -> JsonObject:
    """The document without what is at the path, which shares all else with it."""
    if len(path) == 1:
        return {key: value for key, value in document.items() if key != path[0]}
    inner = document.get(path[0])
    return {**document, path[0]: without(inner, *path[1:])} if isinstance(inner, dict) else document


def pruned(value: Json) -> Json:
    """The value without empty maps and lists, which mean as much as missing ones."""
    if isinstance(value, dict):
        kept = {key: pruned(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in ({}, [], None)}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value
