"""Fits what a file says to the types of the settings: a text is what stands there, whatever YAML would make of it.

Scalars are texts, those without quotes `PlainText`. All that is wrong is reported at once, by the names of settings.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec import inspect

from extender.config.tree import settings
from extender.masked import masked_value, without_password
from extender.yaml_values import FALSE, TRUE, PlainText

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_SHOWN_CHARACTERS = 200


class Fitting:
    """Fits one tree. `problems` has a line for each value that is wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def fit(self, value: Any, kind: inspect.Type, path: str = "") -> Any:  # noqa: ANN401  # what a decoder takes
        """What `msgspec.convert` takes in place of the value, if there is no problem."""
        member = next((each for each in members_of(kind) if _has_form(value, each)), None)
        match member:
            case inspect.StructType():
                return self._fit_struct(value, member, path)
            case inspect.DictType():
                return {str(key): self.fit(each, member.value_type, f"{path}.{key}") for key, each in value.items()}
            case inspect.VarTupleType():
                return [self.fit(each, member.item_type, f"{path}[{at}]") for at, each in enumerate(value)]
            case inspect.NoneType():
                return None
        if (scalar := _scalar(str(value), member) if member else None) is None:
            self._refuse(value, path, f"it must be {' or '.join(map(_described, members_of(kind)))}")
        return scalar

    def _fit_struct(self, value: Mapping[Any, Any], kind: inspect.StructType, path: str) -> dict[str, Any]:
        fields = {field.encode_name: field for field in kind.fields}
        prefix, before = f"{path}." if path else "", len(self.problems)
        for key in value.keys() - fields.keys():
            self.problems.append(f"{prefix}{key}: there is no such setting; known there: {', '.join(sorted(fields))}")
        fitted = {
            str(key): self.fit(each, fields[key].type, f"{prefix}{key}") for key, each in value.items() if key in fields
        }
        if lacking := [name for name, field in fields.items() if field.required and name not in value]:
            self.problems.append(f"{path}: it lacks {', '.join(lacking)}")
        if len(self.problems) == before:
            try:
                msgspec.convert(fitted, kind.cls)
            except msgspec.ValidationError as exc:  # what the class itself checks
                self._refuse(value, path, str(exc).partition(" - at `")[0])
        return fitted

    def _refuse(self, value: object, path: str, why: str) -> None:
        meaning = "".join(f" {each.documentation}" for each in settings() if _is_in(path, each.path))
        shown = _shown(without_password(value) if _is_text(value) and path.startswith("cache") else value)
        self.problems.append(f"{path or 'the configuration'}: {shown} is wrong: {why}.{meaning}")


def members_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The kinds of which a value may be."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from members_of(each)
    else:
        yield kind


def field_of(kind: inspect.Type | None, key: str) -> inspect.Type | None:
    """The kind of what a section of this kind has under the key; None if it is no section, or has no such key."""
    sections = [each for each in members_of(kind) if isinstance(each, inspect.StructType)] if kind else []
    return next((field.type for each in sections for field in each.fields if field.encode_name == key), None)


def is_section(kind: inspect.Type) -> bool:
    """Whether a value of this kind is, or may be, a section."""
    return any(isinstance(each, inspect.StructType) for each in members_of(kind))


def is_text(kind: inspect.Type | None) -> bool:
    texts = inspect.StrType | inspect.EnumType | inspect.LiteralType
    return kind is not None and all(isinstance(each, texts) for each in members_of(kind))


def _has_form(value: object, kind: inspect.Type) -> bool:
    is_null = isinstance(value, PlainText) and value.is_null
    match kind:
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, dict)
        case inspect.VarTupleType():
            return isinstance(value, list)
        case inspect.NoneType():
            return is_null
        case _:
            return isinstance(value, str) and not is_null


def _scalar(text: str, kind: inspect.Type) -> str | float | None:
    """The text as a value of that kind; None if it is none."""
    match kind:
        case inspect.StrType(pattern=pattern) if pattern is None or re.search(pattern, text):
            return text
        case inspect.BoolType() if text in TRUE + FALSE:
            return text in TRUE
        case inspect.EnumType() | inspect.LiteralType():
            word = "off" if text in FALSE else text  # a chart's values hold `off` as false
            return word if word in _words(kind) else None
        case inspect.FloatType() if _NUMBER.fullmatch(text) and _is_within(float(text), kind):
            return float(text)
        case inspect.IntType() if _NUMBER.fullmatch(text) and _is_within(float(text), kind):
            return int(float(text)) if float(text).is_integer() else None
    return None


def _words(kind: inspect.EnumType | inspect.LiteralType) -> Sequence[str]:
    return [str(each.value) for each in kind.cls] if isinstance(kind, inspect.EnumType) else list(map(str, kind.values))


def _is_within(number: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (kind.ge is None or number >= kind.ge)
        and (kind.gt is None or number > kind.gt)
        and (kind.le is None or number <= kind.le)
    )


_FORMS = {
    inspect.StructType: "a map of settings",
    inspect.DictType: "a map such as {name: value}",
    inspect.VarTupleType: "a list such as [a, b]",
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "a text, '' for none",
}


def _described(kind: inspect.Type) -> str:
    match kind:
        case inspect.EnumType() | inspect.LiteralType():
            return f"one of {', '.join(each or repr('') for each in _words(kind))}"
        case inspect.IntType() | inspect.FloatType():
            bounds = {"from": kind.ge, "above": kind.gt, "up to": kind.le}
            shown = [f"{word} {bound:.0f}" for word, bound in bounds.items() if bound is not None]
            return " ".join([_FORMS[type(kind)], *shown])
        case inspect.StrType(pattern=pattern) if pattern:
            return f"a text that matches {pattern}"
    return _FORMS[type(kind)]


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not (isinstance(value, PlainText) and value.is_null)


def _shown(value: object) -> str:
    if isinstance(value, PlainText) and value.is_null:
        return "null"
    if isinstance(value, str):
        return f"{masked_value(str(value))!r:.{_SHOWN_CHARACTERS}}"
    return "a map" if isinstance(value, dict) else "a list"


def _is_in(path: str, setting: str) -> bool:
    return path == setting or path.startswith((f"{setting}[", f"{setting}."))
