"""Applies JSON patches (RFC 6902) and merge patches (RFC 7396) as kube-apiserver does.

Source: github.com/evanphx/json-patch, v4. `remove` of what is not there fails, and an `add` needs its parent.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

Document = dict[str, Any]
_Json: TypeAlias = Any


class PatchFailed(Exception):
    """The patch does not apply."""


def apply_json_patch(document: Document, operations: Iterable[dict[str, Any]]) -> Document:
    """The patched document; the given one stays as it is. Raises PatchFailed."""
    patched = _copied({"": document})  # so that the whole can be replaced too
    for operation in operations:
        try:
            _apply(patched, operation)
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            path, op = operation.get("path"), operation.get("op")
            raise PatchFailed(f"{op} operation does not apply: {path}: {exc}") from exc
    whole: Document = patched[""]
    return whole


def _apply(root: Document, operation: dict[str, Any]) -> None:
    parent, last = _locate(root, operation["path"])
    match operation["op"]:
        case "add":
            _add(parent, last, operation["value"])
        case "replace":
            parent[_existing(parent, last)] = operation["value"]
        case "remove":
            del parent[_existing(parent, last)]
        case "test":
            if parent[_existing(parent, last)] != operation.get("value"):
                raise ValueError("testing value failed")
        case "copy" | "move":
            source, key = _locate(root, operation["from"])
            value = source[_existing(source, key)]
            if operation["op"] == "move":
                del source[_existing(source, key)]
            _add(parent, last, _copied({"": value})[""])
        case other:
            raise ValueError(f"unexpected kind {other}")


def _locate(root: Document, pointer: str) -> tuple[_Json, str]:
    parent: _Json = root
    *steps, last = ["", *(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])]
    for step in steps:
        parent = parent[_existing(parent, step)]
    return parent, last


def _existing(parent: _Json, step: str) -> _Json:
    if isinstance(parent, list):
        return _index(step, len(parent) - 1)
    if step not in parent:
        raise KeyError(step)
    return step


def _add(parent: _Json, step: str, value: _Json) -> None:
    if not isinstance(parent, list):
        parent[step] = value
    elif step == "-":
        parent.append(value)
    else:
        parent.insert(_index(step, len(parent)), value)


def _index(step: str, highest: int) -> int:
    """Without leading zeros or a sign (RFC 6901, section 4), of which the library of Go is less strict."""
    if not step.isdigit() or str(int(step)) != step or int(step) > highest:
        raise IndexError(f"no index {step}")
    return int(step)


def _copied(document: Document) -> Document:
    found: Document = msgspec.json.decode(msgspec.json.encode(document))
    return found


def apply_merge_patch(document: Document, patch: Document) -> Document:
    """The patched document; the given one stays as it is."""
    merged = dict(document)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = apply_merge_patch(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged
