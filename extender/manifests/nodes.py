"""YAML as kubectl reads it, with the places of all its parts in the text.

kubectl reads with sigs.k8s.io/yaml, whose reader is YAML 1.1 as Go has it: `yes` and `n` are booleans, `0o17` is a
number, dates and tags that it does not know are texts, an anchor may be given again, the last of equal keys counts, and
a merge key replaces what stands before it.
https://github.com/yaml/go-yaml/blob/v2.4.3/resolve.go and decode.go
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import yaml

from extender.bounded_yaml import FALSE, TRUE, InvalidYaml, bounded_events
from extender.kubernetes.documents import Json


class TextNode(msgspec.Struct, gc=False):
    """A part of a document: `content` is a scalar's text, a list's nodes, a map's pairs, or what an alias stands for.

    `start` is where it begins with its anchor and tag, `inner` where without; `end` is behind its last character, and
    `column` that of its first, of a list in lines the one of its dashes. `aliases` are those that stand for it.
    """

    content: "Content"
    start: int
    inner: int
    end: int
    column: int
    line: int
    tag: str | None = None
    anchor: str | None = None
    is_plain: bool = False  # a scalar that may be more than a text
    is_flow: bool = False
    aliases: list["TextNode"] = []


Pair: TypeAlias = tuple[TextNode, TextNode]
Content: TypeAlias = str | list[TextNode] | tuple[Pair, ...] | TextNode
_PROPERTY = re.compile(r"(?:[&!]\S*(?:[ \t]+|(?:[ \t]*(?:#[^\n]*)?\r?\n[ \t]*)+))*")
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, tuple[Json, str]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), (None, "null")),
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
# In flow style kubectl takes colons before an indicator for a part of the scalar, which PyYAML refuses.
_COLONS = re.compile(r"""(?<=[^\s,\[\]{}"':]):+(?=[,\[\]{}])""")
BYTE_ORDER_MARK = "\ufeff"  # PyYAML takes it for nothing where a line begins, and kubectl for a character
_PRIVATE = range(0xE000, 0xF900)  # characters of which the first that a text lacks may stand for another


def compose(text: str, first_line: int = 1, repeats: list[TextNode] | None = None) -> TextNode | None:
    """The first document of a text, of which kubectl reads no other; None if it is empty.

    A byte-order mark at its begin counts for no place. `repeats` gets keys that their maps have already. Raises
    InvalidYaml.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    if text.startswith(BYTE_ORDER_MARK):
        raise InvalidYaml(f"line {first_line}: a second byte-order mark")
    scanned, characters = _as_go_scans(text)
    composer = _Composer(text, first_line, [] if repeats is None else repeats, characters)
    for event in bounded_events(scanned, first_line=first_line, many_merges=True):
        if isinstance(event, yaml.CollectionEndEvent):
            composer.end(event)
        elif isinstance(event, yaml.NodeEvent):
            composer.begin(event)
        elif isinstance(event, yaml.DocumentEndEvent):
            return composer.root
    return None


def _as_go_scans(text: str) -> tuple[str, dict[int, str]]:
    """A text of the same length that PyYAML takes apart as kubectl does this one, and what its characters stand for."""
    unused = (chr(each) for each in _PRIVATE if chr(each) not in text)
    characters: dict[int, str] = {}
    if BYTE_ORDER_MARK in text and (mark := next(unused, "")):
        characters[ord(mark)], text = BYTE_ORDER_MARK, text.replace(BYTE_ORDER_MARK, mark)
    if _COLONS.search(text) and (colon := next(unused, "")):
        characters[ord(colon)], text = ":", _COLONS.sub(lambda found: colon * len(found[0]), text)
    return text, characters


class _Composer:
    """Makes nodes of the events of one document."""

    def __init__(self, text: str, first_line: int, repeats: list[TextNode], characters: Mapping[int, str]) -> None:
        self._characters = characters
        self.root: TextNode | None = None
        self._text = text
        self._first_line = first_line
        self._repeats = repeats
        self._open: list[tuple[TextNode, list[TextNode]]] = []
        self._anchors: dict[str, TextNode] = {}

    def begin(self, event: Any) -> None:  # noqa: ANN401  # PyYAML's classes are untyped
        """Takes the event of a scalar or alias, or that of the begin of a collection."""
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event)
        else:
            node = _begun(self._text, event)
            if isinstance(node.content, str):
                node.content = self._read(event, node.content)
            if event.anchor:
                self._anchors[event.anchor] = node
        if self._open:
            self._open[-1][1].append(node)
        else:
            self.root = node
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((node, []))

    def _read(self, event: Any, content: str) -> str:  # noqa: ANN401  # as above
        """The text of a scalar."""
        if "?" in content and event.implicit[0] and not event.style and self._open and self._open[-1][0].is_flow:
            raise InvalidYaml(f"line {event.start_mark.line + self._first_line}: did not find expected ',' or ']'")
        return content.translate(self._characters) if self._characters else content

    def _alias(self, event: Any) -> TextNode:  # noqa: ANN401  # as above
        target, mark = self._anchors[event.anchor], event.start_mark
        if any(each is target for each, _ in self._open):
            raise InvalidYaml(f"line {mark.line + self._first_line}: anchor {event.anchor!r:.100} contains itself")
        node = TextNode(target, mark.index, mark.index, event.end_mark.index, mark.column, mark.line)
        target.aliases.append(node)
        return node

    def end(self, event: Any) -> None:  # noqa: ANN401  # as above
        """Takes the event of the end of a collection."""
        node, inner = self._open.pop()
        node.content = inner
        if isinstance(event, yaml.MappingEndEvent):
            node.content = tuple(zip(inner[::2], inner[1::2], strict=True))
            self._repeats += _repeated(inner[::2])
        node.end = event.end_mark.index if node.is_flow else inner[-1].end


def _repeated(keys: list[TextNode]) -> Iterator[TextNode]:
    names = [each.content for each in keys if isinstance(each.content, str) and not is_merge(each)]
    if len(set(names)) < len(names):
        seen = set[str]()
        for each in keys:
            if isinstance(each.content, str) and not is_merge(each):
                if each.content in seen:
                    yield each
                seen.add(each.content)


def _begun(text: str, event: Any) -> TextNode:  # noqa: ANN401  # as above
    start, end, column = event.start_mark.index, event.end_mark.index, event.start_mark.column
    inner, is_scalar = start, isinstance(event, yaml.ScalarEvent)
    if event.anchor or event.tag or text[start : start + 1] == "!":
        found = _PROPERTY.match(text, start)
        inner = min(found.end(), end if is_scalar else found.end()) if found else start
        column = inner - text.rfind("\n", 0, inner) - 1
    return TextNode(
        content=event.value if is_scalar else "",
        start=start,
        inner=inner,
        end=end,
        column=column,
        line=event.start_mark.line,
        tag=event.tag,
        anchor=event.anchor,
        is_plain=is_scalar and event.implicit[0],
        is_flow=is_scalar or bool(event.flow_style),
    )


def value_of(node: TextNode | None, first_line: int = 1) -> Json:
    """What kubectl makes of it, as JSON. Raises InvalidYaml for what it refuses."""
    values = _Values(first_line)
    made = values.value_of(node) if node else None
    if values.infinite:
        _check_finite(made, values.infinite)
    return made


def _check_finite(value: Json, problem: InvalidYaml) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as exc:
        raise problem from exc


class _Values:
    """Makes the values of nodes."""

    def __init__(self, first_line: int) -> None:
        self._first_line = first_line
        self.infinite: InvalidYaml | None = None  # if no other value of its key replaces it

    def value_of(self, node: TextNode) -> Json:
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

    def _map(self, pairs: tuple[Pair, ...]) -> dict[str, Json]:
        made: dict[str, Json] = {}
        for key, value in pairs:
            if is_merge(key):
                for each in self._merged(value):
                    made |= each
            else:
                made[self.key_of(key)] = self.value_of(value)
        return made

    def _merged(self, value: TextNode) -> Iterator[dict[str, Json]]:
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

    def _scalar(self, node: TextNode, text: str) -> Json:
        if not node.is_plain and node.tag is None:
            return text
        tag = (node.tag or "").removeprefix(_TAG)
        if tag == "binary":
            return self._binary(node, text)
        if (
            tag == "str"
            or (tag not in ("", "bool", "int", "float", "null", "timestamp"))
            or (node.tag or "") == tag != ""
        ):
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


def key_of(key: TextNode) -> str:
    """The key as JSON has it. Raises InvalidYaml."""
    return _Values(1).key_of(key)


def is_merge(key: TextNode) -> bool:
    """Whether a key stands for the keys of other maps."""
    return key.content == "<<" and (key.is_plain or key.tag == f"{_TAG}merge")


def _resolved(text: str, *, is_untagged: bool) -> tuple[Json, str]:
    """The value of a scalar without quotes, and its kind."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text, "str"
    if is_untagged and _DATE.fullmatch(text):
        return text, "timestamp"  # which differs from other texts by its tag alone
    return _number(text if text[0] == "." else text.replace("_", "")) or (text, "str")


def _number(plain: str) -> tuple[Json, str] | None:
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
