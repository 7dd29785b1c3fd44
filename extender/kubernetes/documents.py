"""JSON as plain values, in which every part may be missing, null, or of another type than the reader expects."""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"
T = TypeVar("T")


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


def reach(document: JsonObject, path: Sequence[str], default: T) -> T:
    """The value at `path`, which becomes `default` where it is missing or null, as maps around it do.

    The caller ensures that values already there have the shapes of core/v1.
    """
    found: dict[str, Any] = document
    for step in path[:-1]:
        if found.get(step) is None:
            found[step] = {}
        found = found[step]
    if found.get(path[-1]) is None:
        found[path[-1]] = default
    return cast("T", found[path[-1]])


def copy_of(value: Json) -> Json:
    """The value with maps and lists of its own."""
    if isinstance(value, dict):
        return {key: copy_of(inner) for key, inner in value.items()}
    return [copy_of(inner) for inner in value] if isinstance(value, list) else value


def pruned(value: Json) -> Json:
    """The value without empty maps and lists, which mean as much as missing ones."""
    if isinstance(value, dict):
        kept = {key: pruned(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in ({}, [], None)}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value
