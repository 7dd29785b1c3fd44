"""JSON Patch (RFC 6902): the operations that turn one JSON value into another, and the pointers (RFC 6901) they use.

Independent of Kubernetes. A field that is equal in both values, or in neither of them, is never touched.
"""

from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from extender.errors import ExtenderError
from extender.kubernetes.documents import Json, JsonObject


class InvalidPatch(ExtenderError):
    """An operation of a JSON Patch that does not fit the document."""


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a patch; `remove` has no value."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: object = msgspec.UNSET


def pointer(path: Sequence[str | int]) -> str:
    """The JSON pointer to `path`: `/` before each step, with `~` and `/` escaped inside steps."""
    return "".join([f"/{_escape(str(step))}" for step in path])


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def apply(document: Json, operations: Sequence[Operation]) -> Json:
    """`document` after the operations, as `diff` makes them; `document` itself stays as it is.

    Raises:
        InvalidPatch: an operation names a parent that the document does not have.
    """
    changed = _copy(document)
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation.path.split("/")[1:]]
        if not steps:
            changed = cast("Json", operation.value)
        else:
            _apply(_parent(changed, steps[:-1], operation.path), steps[-1], operation)
    return changed


def _copy(value: Json) -> Json:
    """The value with maps and lists of its own."""
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _parent(document: Json, steps: Sequence[str], path: str) -> Json:
    for step in steps:
        try:
            document = document[int(step)] if isinstance(document, list) else cast("JsonObject", document)[step]
        except (LookupError, TypeError, ValueError) as exc:
            raise InvalidPatch(f"{path} is not in the document") from exc
    return document


def _apply(parent: Json, step: str, operation: Operation) -> None:
    value = cast("Json", operation.value)
    try:
        if isinstance(parent, list):
            index = len(parent) if step == "-" else int(step)
            if operation.op == "add":
                parent.insert(index, value)
            elif operation.op == "replace":
                parent[index] = value
            else:
                del parent[index]
        elif operation.op == "remove":
            del cast("JsonObject", parent)[step]
        else:
            cast("JsonObject", parent)[step] = value
    except (LookupError, TypeError, ValueError) as exc:
        raise InvalidPatch(f"{operation.path} is not in the document") from exc


def diff(before: Json, after: Json) -> list[Operation]:
    """The operations that turn `before` into `after`, in the order to apply them. O(size of both).

    Lists are compared without their common head and tail, so a list that only grew or shrank in one position gets only
    additions or removals. Values are compared as in Python, where 1 equals True.
    """
    found: list[Operation] = []
    _diff(before, after, "", found)
    return found


def _diff(before: Json, after: Json, path: str, found: list[Operation]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        _diff_objects(before, after, path, found)
    elif isinstance(before, list) and isinstance(after, list):
        _diff_lists(before, after, path, found)
    elif before != after:
        found.append(Operation("replace", path, after))


def _diff_objects(before: JsonObject, after: JsonObject, path: str, found: list[Operation]) -> None:
    found += [Operation("remove", f"{path}/{_escape(key)}") for key in before if key not in after]
    for key, value in after.items():
        if key not in before:
            found.append(Operation("add", f"{path}/{_escape(key)}", value))
        elif before[key] != value:
            _diff(before[key], value, f"{path}/{_escape(key)}", found)


def _diff_lists(before: list[Json], after: list[Json], path: str, found: list[Operation]) -> None:
    shorter = min(len(before), len(after))
    head = tail = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    same = range(head, shorter - tail)
    for index in same:
        _diff(before[index], after[index], f"{path}/{index}", found)
    found += [Operation("remove", f"{path}/{index}") for index in reversed(range(same.stop, len(before) - tail))]
    found += [Operation("add", f"{path}/{index}", after[index]) for index in range(same.stop, len(after) - tail)]
