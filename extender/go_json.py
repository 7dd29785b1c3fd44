"""Decodes JSON as Go's encoding/json does, which registries' clients and the kubelet are written with.

What differs from other decoders: keys of structs match in any case, a key given twice is merged with the first (in a
list element by element), `null` takes back maps, lists and what a type allows to be None, and text that is no UTF-8 or
half a surrogate pair becomes U+FFFD.
Source: encoding/json, `Unmarshal`, of Go 1.26.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

_MOST_DIGITS, _MOST_INTEGER = 19, 1 << 63  # of an int64
_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


class InvalidJson(ValueError):
    """The bytes are no JSON, or not of the type. The message quotes nothing of them."""


class _Object(NamedTuple):
    """Keys and values in their order, repeated ones too."""

    pairs: list[tuple[str, object]]


class _Reading(NamedTuple):
    """How a type is read: `read` takes a value and what an earlier key has put there.

    `zero` stands for a `null` among others. `clear`: what a `null` leaves of what an earlier key has put there.
    """

    read: Callable[[object, object], object]
    zero: object
    clear: Callable[[object], object] = lambda before: before


class GoDecoder(Generic[T]):
    """Decodes values of one type, as many as come. Build it once.

    A map is a dict. Where it matters what later keys have replaced, it is a list of pairs, with None for a `null` that
    has replaced all before it.
    """

    def __init__(self, kind: type[T], *, most_values: int) -> None:
        self._kind, self._most_values = kind, most_values
        self._reading = _made(inspect.type_info(kind))

    def decode(self, body: bytes) -> T:
        """The value in `body`. Keys that the type does not declare are ignored. O(bytes).

        Raises:
            InvalidJson: not JSON, nested too deep, more than `most_values` values, or a field of another type.
        """
        if sum(map(body.count, (b",", b"[", b"{"))) > self._most_values:
            raise InvalidJson(f"it has more than {self._most_values} values")
        try:
            parsed = _PARSER.decode(body.decode(errors="replace"))
            read = self._reading.zero if parsed is None else self._reading.read(parsed, None)
            return msgspec.convert(read, self._kind)
        except json.JSONDecodeError as exc:
            raise InvalidJson(f"{exc.msg} (character {exc.pos})") from None
        except RecursionError:
            raise InvalidJson("it is nested too deep") from None


def _integer(digits: str) -> float:
    return int(digits) if len(digits.lstrip("-")) <= _MOST_DIGITS else float(digits)


def _no_number(word: str) -> object:
    raise json.JSONDecodeError("no number", word, 0)  # NaN and Infinity


_PARSER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_integer, parse_constant=_no_number)


def _made(kind: inspect.Type) -> _Reading:
    match kind:
        case inspect.UnionType():
            there = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
            reading = _made(there)  # as Go's pointers, of which structs are taken back by a `null`
            return reading._replace(clear=lambda _: None) if isinstance(there, inspect.StructType) else reading
        case inspect.StructType():
            fields = {each.encode_name.lower(): (each.encode_name, _made(each.type)) for each in kind.fields}
            return _Reading(lambda value, before: _read_struct(fields, value, before), {})
        case inspect.DictType():
            values = _made(kind.value_type)
            return _Reading(lambda value, before: _read_map(values, value, before), {}, lambda _: None)
        case inspect.ListType(item_type=inspect.UnionType(types=(inspect.TupleType(item_types=(_, value_type)), _))):
            values = _made(value_type)
            return _Reading(lambda value, before: _read_pairs(values, value, before), [], _cleared)
        case inspect.ListType():
            items = _made(kind.item_type)
            return _Reading(lambda value, before: _read_list(items, value, before), [], lambda _: None)
        case _:
            return _SCALARS.get(type(kind), _ANY)


def _read_struct(fields: dict[str, tuple[str, _Reading]], value: object, before: object) -> object:
    read = dict(before) if isinstance(before, dict) else {}
    for key, item in _pairs_of(value):
        name, reading = fields.get(key) or fields.get(key.replace("ſ", "s").lower()) or (key, None)
        if reading:
            before = read.pop(name, None)
            after = reading.clear(before) if item is None else reading.read(item, before)
            if after is not None:
                read[name] = after
    return read


def _read_map(values: _Reading, value: object, before: object) -> object:
    read = dict(before) if isinstance(before, dict) else {}
    return read | dict(_read_pairs(values, value, None))


def _read_pairs(values: _Reading, value: object, before: object) -> list[tuple[str, object]]:
    read = before if isinstance(before, list) else []
    pairs = _pairs_of(value)
    return read + [(_whole(key), values.zero if item is None else values.read(item, None)) for key, item in pairs]


def _cleared(before: object) -> object:
    return [*before, None] if isinstance(before, list) else before


def _pairs_of(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, _Object):
        raise _wrong("object", value)
    return value.pairs


def _read_list(items: _Reading, value: object, before: object) -> object:
    """As long as the new list; Go writes its elements over those of the list before."""
    if not isinstance(value, list):
        raise _wrong("array", value)
    below = itertools.chain(before if isinstance(before, list) else (), itertools.repeat(None))
    return [
        (items.clear(there) or items.zero) if item is None else items.read(item, there)
        for item, there in zip(value, below, strict=False)
    ]


def _read_text(value: object, _before: object) -> object:
    if not isinstance(value, str):
        raise _wrong("str", value)
    return _whole(value)


def _read_integer(value: object, _before: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or not -_MOST_INTEGER <= value < _MOST_INTEGER:
        raise _wrong("int", value)
    return value


_ANY = _Reading(lambda value, _: value, None)
_SCALARS = {inspect.IntType: _Reading(_read_integer, 0), inspect.StrType: _Reading(_read_text, "")}


def _wrong(expected: str, value: object) -> InvalidJson:
    names = {_Object: "object", list: "array"}
    return InvalidJson(f"Expected `{expected}`, got `{names.get(type(value), type(value).__name__)}`")


def _whole(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
