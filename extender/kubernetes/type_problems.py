"""Objects as a person wrote them: decoded, or with the key of the value that has another type than its API gives it.

msgspec names the keys of structs, and writes `[...]` for those of mappings, such as selectors and annotations.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")

_PROBLEM = re.compile(r"(?P<what>.*got `(?P<got>\w+)`.*) - at `\$(?P<path>\S*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>[^.\[\]]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
# What msgspec calls the types of JSON.
_KINDS: Mapping[type, str] = {
    str: "str", bool: "bool", int: "int", float: "float", type(None): "null", list: "array", dict: "object",
}  # fmt: skip


def decode_written(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The object in JSON as a struct. Raises msgspec.DecodeError, which names every key that leads to what is wrong."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as exc:
        raise msgspec.ValidationError(_described(exc, msgspec.json.decode(raw))) from exc


def _described(error: msgspec.ValidationError, document: object) -> str:
    found = _PROBLEM.fullmatch(str(error))
    path = _found_path(document, found["path"], found["got"]) if found else None
    return f"{found['what']} - at `${path}`" if found and path is not None else str(error)


def _found_path(value: object, path: str, kind: str) -> str | None:
    """The path to the first value of that kind to which `path` may lead; None if it leads to none."""
    if not path:
        return "" if _KINDS.get(type(value)) == kind else None
    step = _STEP.match(path)
    if step is None:
        return None
    rest = path[step.end() :]
    for key, shown in _keys(value, step):
        found = _found_path(value[key], rest, kind)  # type: ignore[index] # as `_keys` has them
        if found is not None:
            return shown + found
    return None


def _keys(value: object, step: re.Match[str]) -> Sequence[tuple[str | int, str]]:
    """The keys that a step may mean, each as it is shown."""
    if isinstance(value, Mapping):
        keys = value if step["any"] else [step["field"]]
        return [(key, f"[{key}]" if step["any"] else step[0]) for key in keys if key in value]
    index = int(step["index"] or 0)
    return [(index, step[0])] if step["index"] and isinstance(value, list) and index < len(value) else []
