"""Decodes JSON as Go's encoding/json does, which registries' clients and the kubelet are written with.

What differs from other decoders: keys of structs match in any case, a key given twice is merged with the first, `null`
changes nothing, and text that is no UTF-8 or half a surrogate pair becomes U+FFFD (encoding/json, `Unmarshal`).
"""

import functools
import json
import re
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import inspect

_MOST_DIGITS = 19  # of an int64
_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


class InvalidJson(ValueError):
    """The bytes are no JSON, or not of the type. The message quotes nothing of them."""


class _Object(NamedTuple):
    """Keys and values in their order, repeated ones too."""

    pairs: list[tuple[str, object]]


class _Reading(NamedTuple):
    """How a type is read: `read` takes a value and what an earlier key has put there; `zero` stands for a `null`."""

    read: Callable[[object, object], object]
    zero: object


def decode(kind: type[T], body: bytes, *, most_values: int) -> T:
    """The value in `body`. Keys that the type does not declare are ignored. O(bytes).

    Raises:
        InvalidJson: not JSON, nested too deep, more than `most_values` values, or a field of another type.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > most_values:
        raise InvalidJson(f"it has more than {most_values} values")
    try:
        parsed = _PARSER.decode(body.decode(errors="replace"))
        reading = _reading_of(kind)  # type: ignore[arg-type]  # a class is hashable, which mypy does not see for type[T]
        return msgspec.convert(reading.zero if parsed is None else reading.read(parsed, None), kind)
    except json.JSONDecodeError as exc:
        raise InvalidJson(f"{exc.msg} (character {exc.pos})") from None
    except msgspec.ValidationError as exc:
        raise InvalidJson(str(exc)) from None
    except RecursionError:
        raise InvalidJson("it is nested too deep") from None


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _no_number(word: str) -> object:
    raise json.JSONDecodeError("no number", word, 0)  # NaN and Infinity


_PARSER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_integer, parse_constant=_no_number)


@functools.cache
def _reading_of(kind: Hashable) -> _Reading:
    return _made(inspect.type_info(kind))


def _made(kind: inspect.Type) -> _Reading:
    match kind:
        case inspect.UnionType():
            return _made(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.StructType():
            fields = {each.encode_name.lower(): (each.encode_name, _made(each.type)) for each in kind.fields}
            return _Reading(lambda value, before: _read_struct(fields, value, before), {})
        case inspect.DictType():
            values = _made(kind.value_type)
            return _Reading(lambda value, before: _read_map(values, value, before), {})
        case inspect.ListType():
            items = _made(kind.item_type)
            return _Reading(lambda value, _: _read_list(items, value), [])
        case inspect.IntType():
            return _Reading(_read_scalar, 0)
        case _:
            return _Reading(_read_scalar, "")


def _read_struct(fields: dict[str, tuple[str, _Reading]], value: object, before: object) -> object:
    if not isinstance(value, _Object):
        return _read_scalar(value, None)
    read = dict(before) if isinstance(before, dict) else {}
    for key, item in value.pairs:
        name, reading = fields.get(key) or fields.get(key.replace("ſ", "s").lower()) or (key, None)
        if reading and item is not None:
            read[name] = reading.read(item, read.get(name))
    return read


def _read_map(values: _Reading, value: object, before: object) -> object:
    if not isinstance(value, _Object):
        return _read_scalar(value, None)
    read = dict(before) if isinstance(before, dict) else {}
    for key, item in value.pairs:
        read[_whole(key)] = values.zero if item is None else values.read(item, None)
    return read


def _read_list(items: _Reading, value: object) -> object:
    if not isinstance(value, list):
        return _read_scalar(value, None)
    return [items.zero if item is None else items.read(item, None) for item in value]


def _read_scalar(value: object, _before: object) -> object:
    if isinstance(value, _Object):
        return {}  # which has the wrong type, as the conversion says
    return _whole(value) if isinstance(value, str) else value


def _whole(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
