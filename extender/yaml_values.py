"""The values of YAML as kubectl reads it, and as Kubernetes' other programs read their files.

kubectl reads with sigs.k8s.io/yaml, whose reader is YAML 1.1 as Go has it: `yes` and `n` are booleans, `0o17` is a
number, dates and tags that it does not know are texts, the last of equal keys counts, and a merge key replaces what
stands before it.
https://github.com/yaml/go-yaml/blob/v2.4.3/resolve.go and decode.go
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, TypeAlias

from extender.bounded_yaml import InvalidYaml
from extender.yaml_nodes import TAG, Pair, TextNode, compose_only, is_merge

YamlValue: TypeAlias = "dict[str, YamlValue] | list[YamlValue] | str | int | float | bool | None"
TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
NULL = ("", "~", "null", "Null", "NULL")
_TAGS = ("bool", "int", "float", "null", "timestamp")  # of scalars that may be more than texts
_WORDS: dict[str, tuple[YamlValue, str]] = {
    **dict.fromkeys(NULL, (None, "null")),
    **dict.fromkeys((*TRUE, "y", "Y"), (True, "bool")),
    **dict.fromkeys((*FALSE, "n", "N"), (False, "bool")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), (math.nan, "float")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), (math.inf, "float")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), (-math.inf, "float")),
}
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:[Tt ]\d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d+)?(?:Z|[-+]\d\d:\d\d)?)?", re.ASCII)
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MOST_WHOLE = 1e21  # of a number that Go writes into JSON without an exponent
_LONGEST = 6  # digits before a point, in a key that is a number
_MOST_DIGITS = 400  # of a number, since Python takes a time that grows with their square


def read_yaml(text: str | bytes, *, unique_keys: bool = False) -> YamlValue:
    """The value of the one document of a text; None if it is empty. Raises InvalidYaml."""
    return value_of(compose_only(text, unique_keys=unique_keys))


def read_texts(text: str | bytes) -> Any:  # noqa: ANN401  # lists, maps and texts
    """As `read_yaml` with unique keys; scalars are the texts that stand there, those without quotes a `PlainText`."""
    node = compose_only(text, unique_keys=True)
    return _Texts(1).value_of(node) if node else None


class PlainText(str):
    """A scalar without quotes, which YAML may take for a number, a boolean or nothing."""

    __slots__ = ()

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self in NULL


def value_of(node: TextNode | None, first_line: int = 1) -> YamlValue:
    """What kubectl makes of it, as JSON. Raises InvalidYaml for what it refuses."""
    values = _Values(first_line)
    made = values.value_of(node) if node else None
    if values.infinite:
        _check_finite(made, values.infinite)
    return made


def _check_finite(value: YamlValue, problem: InvalidYaml) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as exc:
        raise problem from exc


class _Values:
    """Makes the values of nodes."""

    def __init__(self, first_line: int) -> None:
        self._first_line = first_line
        self.infinite: InvalidYaml | None = None  # if no other value of its key replaces it

    def value_of(self, node: TextNode) -> YamlValue:
        content = node.content
        if isinstance(content, str):
            made = self._scalar(node, content)
            if isinstance(made, float) and not math.isfinite(made):
                self.infinite = self._error(node, "a number that JSON does not have")
            elif isinstance(made, float) and made.is_integer() and abs(made) < _MOST_WHOLE:
                return int(Decimal(repr(made)))
            return made
        if isinstance(content, TextNode):
            return self.value_of(content)
        if isinstance(content, list):
            return [self.value_of(each) for each in content]
        return self._map(content)

    def _map(self, pairs: tuple[Pair, ...]) -> dict[str, YamlValue]:
        made: dict[str, YamlValue] = {}
        for key, value in pairs:
            if is_merge(key):
                for each in self._merged(value):
                    made |= each
            else:
                made[self.key_of(key)] = self.value_of(value)
        return made

    def _merged(self, value: TextNode) -> Iterator[dict[str, YamlValue]]:
        """The maps of a merge key, those that count more last."""
        found = value.content
        for each in reversed(found) if isinstance(found, list) else (value,):
            target = each.content if isinstance(each.content, TextNode) else each
            if not isinstance(target.content, tuple):
                raise self._error(each, "map merge requires map or sequence of maps as the value")
            yield self._map(target.content)

    def key_of(self, node: TextNode) -> str:
        target = node.content if isinstance(node.content, TextNode) else node
        if not isinstance(target.content, str):
            raise self._error(node, "a list or map is no key")
        made = self._scalar(target, target.content)
        if isinstance(made, str):
            return made
        if isinstance(made, bool):
            return "true" if made else "false"
        if isinstance(made, int) and -(1 << 63) <= made < 1 << 63:
            return str(made)
        if isinstance(made, float):
            return _shown(made)
        raise self._error(node, f"{target.content!r:.100} is no key")

    def _scalar(self, node: TextNode, text: str) -> YamlValue:
        if not node.is_plain and node.tag is None:
            return text
        tag = (node.tag or "").removeprefix(TAG)
        if tag == "binary":
            return self._binary(node, text)
        if tag == "str" or (tag not in ("", *_TAGS)) or (node.tag or "") == tag != "":
            return text
        made, kind = _resolved(text, is_untagged=not tag or tag == "timestamp")
        if tag == "float" and kind == "int" and isinstance(made, int) and made < 1 << 63:
            return float(made)
        if tag not in ("", kind):
            raise self._error(node, f"cannot decode {text!r:.100} as a !!{tag}")
        return made

    def _binary(self, node: TextNode, text: str) -> str:
        try:
            data = base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise self._error(node, "!!binary value contains invalid base64 data") from exc
        return data.decode(errors="replace")

    def _error(self, node: TextNode, why: str) -> InvalidYaml:
        return InvalidYaml(f"line {self._first_line + node.line}: {why} (column {node.column + 1})")


class _Texts(_Values):
    """Leaves scalars the texts that they are."""

    def _scalar(self, node: TextNode, text: str) -> str:
        tag = (node.tag or "").removeprefix(TAG)
        if tag not in ("", "!", "str", *_TAGS):
            raise self._error(node, f"the tag {node.tag!r:.100} is not known")
        return PlainText(text) if tag in _TAGS or (node.is_plain and not tag) else text


def key_of(key: TextNode) -> str:
    """The key as JSON has it. Raises InvalidYaml."""
    return _Values(1).key_of(key)


def _resolved(text: str, *, is_untagged: bool) -> tuple[YamlValue, str]:
    """The value of a scalar without quotes, and its kind."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text, "str"
    if is_untagged and _DATE.fullmatch(text):
        return text, "timestamp"  # which differs from other texts by its tag alone
    return _number(text if text[0] == "." else text.replace("_", "")) or (text, "str")


def _number(plain: str) -> tuple[YamlValue, str] | None:
    if len(plain) > _MOST_DIGITS:
        return None
    if _INTEGER.fullmatch(plain):
        whole = _integer(plain)
        if -(1 << 63) <= whole < 1 << 63 or (whole < 1 << 64 and plain[0].isdigit()):
            return whole, "int"
    if _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return number, "float"
    return None


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    sign = -1 if text[0] == "-" else 1
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _shown(number: float) -> str:
    """A number as Go writes a key: the shortest text that is the same number of 32 bits."""
    single = _as_single(number)
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else ".inf" if single > 0 else "-.inf"
    shortest = next(
        f"{single:.{digits}e}" for digits in range(17) if _as_single(float(f"{single:.{digits}e}")) == single
    )
    power = int(shortest.partition("e")[2])
    if power < -4 or power >= _LONGEST:
        return shortest
    digits = len(shortest.partition("e")[0].replace("-", "").replace(".", "")) - 1 - power
    return f"{float(shortest):.{max(digits, 0)}f}"


def _as_single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)
