"""Makes the JSON Schema of a chart's values from its values.yaml: comments, defaults, and lines of `@schema`.

A value without a comment is an error. The settings of the service below `config` come from the package's own tree.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

from extender.config.tree import Config, settings

Schema = dict[str, Any]

_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z][A-Za-z0-9]*):(?: |$)")
_COMMENT = re.compile(r"^ *# ?(?P<text>.*)$")
_ADDITION = "@schema "
_REFERENCE = "#/$defs/{name}"
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


class UndescribedValue(ValueError):
    """A value has no comment; the message names it."""


def schema_of(text: str) -> Schema:
    """Returns the schema of that values.yaml. Raises UndescribedValue."""
    comments = dict(_comments(text))
    schema = _of_map(yaml.safe_load(text), (), comments)
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "$defs": _definitions() | _pods(schema)}


def _comments(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yields (path of a key, lines of the comment right above it)."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if found := _COMMENT.match(line):
            comment.append(found["text"])
        elif key := _KEY.match(line):
            indent = len(key["indent"])
            path = [*(each for each in path if each[0] < indent), (indent, key["name"])]
            yield tuple(name for _, name in path), comment
            comment = []
        else:
            comment = []


def _of_map(values: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[tuple[str, ...], list[str]]) -> Schema:
    properties = {name: _of_value(value, (*path, name), comments) for name, value in values.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _of_value(value: object, path: tuple[str, ...], comments: Mapping[tuple[str, ...], list[str]]) -> Schema:
    lines = comments.get(path, [])
    description = _description(path, lines)
    addition: Schema = {}
    for line in lines:
        if line.startswith(_ADDITION):
            addition |= msgspec.json.decode(line.removeprefix(_ADDITION), type=Schema)
    if "$ref" in addition:
        return {"description": description, **addition}
    if isinstance(value, dict) and value and _is_described(path, comments):
        return {"description": description, **_of_map(value, path, comments), **addition}
    (name,) = (name for kind, name in _TYPES if type(value) is kind)
    return {"description": description, "type": name, **addition}


def leaves_of(text: str) -> Iterator[tuple[str, object, str]]:
    """Yields the path, the default and the description of each value of that values.yaml. Raises UndescribedValue."""
    comments = dict(_comments(text))

    def leaves(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, object, str]]:
        for name, value in values.items():
            path = (*above, name)
            if isinstance(value, dict) and _is_described(path, comments):
                yield from leaves(value, path)
            else:
                yield ".".join(path), value, _description(path, comments.get(path, []))

    return leaves(yaml.safe_load(text), ())


def _description(path: tuple[str, ...], lines: Iterable[str]) -> str:
    description = " ".join(line for line in lines if not line.startswith(_ADDITION))
    if not description:
        raise UndescribedValue(f"{'.'.join(path)} has no comment")
    return description


def _is_described(path: tuple[str, ...], comments: Mapping[tuple[str, ...], list[str]]) -> bool:
    """Whether keys of the map have comments; those of a map that is anybody's to fill have none."""
    return any(lines for each, lines in comments.items() if each[:-1] == path)


def _definitions() -> dict[str, Schema]:
    """The schema of the service's settings as `config`, and those that it refers to."""
    _, parts = msgspec.json.schema_components([Config], ref_template=_REFERENCE)
    config = _described(parts[Config.__name__], "", parts)
    return {"config": config, **{name: _plain(parts[name]) for name in sorted(_referred(config, parts))}}


def _pods(schema: Schema) -> dict[str, Schema]:
    """The schema of a part's own values: those that follow one another from `replicas` to `overrides`."""
    names = list(schema["properties"])
    if "overrides" not in names:
        return {}
    shared = names[names.index("replicas") : names.index("overrides")]
    properties = {name: {"$ref": f"#/properties/{name}"} for name in shared}
    return {"pods": {"type": "object", "additionalProperties": False, "properties": properties}}


def _referred(schema: object, parts: Mapping[str, Schema]) -> set[str]:
    """The names of the parts that a schema refers to, directly or by another one."""
    if isinstance(schema, list):
        return set().union(*(_referred(each, parts) for each in schema))
    if not isinstance(schema, dict):
        return set()
    found = set().union(*(_referred(each, parts) for each in schema.values()))
    if name := schema.get("$ref", "").rpartition("/")[2]:
        found |= {name} | _referred(parts[name], parts)
    return found


def _described(schema: Schema, prefix: str, definitions: Mapping[str, Schema]) -> Schema:
    """A section's schema with the documentation of its settings; sections within it are written out."""
    documentation = {setting.path: setting.documentation for setting in settings()}
    properties: Schema = {}
    for name, each in schema["properties"].items():
        path = f"{prefix}{name}"
        inner = definitions.get(each.get("$ref", "").rpartition("/")[2], {})
        if path not in documentation and "properties" in inner:
            properties[name] = _described(inner, f"{path}.", definitions)
        else:
            described = {"description": documentation[path]} if path in documentation else {}
            properties[name] = _plain(each) | described
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: Schema) -> Schema:
    """The schema without titles and the defaults, which the service has itself, and with patterns as JSON Schema's.

    Names of a map's keys are patterns too: of `propertyNames` Helm says at another place that they are wrong.
    """
    if names := schema.get("propertyNames", {}).get("enum"):
        known = {f"^({'|'.join(names)})$": schema["additionalProperties"]}
        others = {name: each for name, each in schema.items() if name != "propertyNames"}
        schema = others | {"patternProperties": known, "additionalProperties": False}
    return {name: _plain_part(name, each) for name, each in schema.items() if name not in ("title", "default")}


def _plain_part(name: str, part: object) -> object:
    if name == "enum" and isinstance(part, list) and "off" in part:
        return [*part, False]  # which YAML makes of `off` without quotes
    if isinstance(part, list):
        return [_plain(each) if isinstance(each, dict) else each for each in part]
    if name == "description" and isinstance(part, str):
        return inspect.cleandoc(part)  # from 3.13 on docstrings come without their indentation
    if name == "pattern" and isinstance(part, str):
        return part.removesuffix(r"\Z") + "$" * part.endswith(r"\Z")
    return _plain(part) if isinstance(part, dict) else part
