"""Reads YAML from outside in time and memory that grow with its text: aliases and merges may add little to it.

Every reader of YAML goes through here. A document's parts are looked at one by one before anything is made of them.
Plain scalars are read as kubectl reads them, which knows no base 60, no dates and no `=`.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from extender.errors import ExtenderError

DEEPEST = 200
"""How deep a document may be nested, with its aliases written out."""
_ADDED, _ADDED_PER_NODE = 10_000, 4  # nodes that aliases may make, and as many more for each that is written
TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
_MERGE = "<<"
_NULLS = ("", "~", "null", "Null", "NULL")
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidYaml(ExtenderError):
    """A text that is no YAML, or that is not read; the message names the line and what is wrong."""


class PlainText(str):
    """A scalar without quotes, which YAML may take for a number, a boolean or nothing."""

    __slots__ = ()

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self in _NULLS


class _Collection(msgspec.Struct):
    """A list or map that has not ended: its nodes, and how deep it is, with aliases written out."""

    anchor: str | None
    keys: set[str] | None  # of a map
    nodes: int = 1
    height: int = 0
    is_at_value: bool = False


class _Bounds:
    """What has been seen of a stream."""

    def __init__(self, *, unique_keys: bool, many_merges: bool) -> None:
        self._unique_keys = unique_keys
        self._unique_merge = not many_merges
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[int, int]] = {}  # nodes and height of what each names
        self._left = _ADDED

    def take(self, event: Any) -> None:  # noqa: ANN401  # PyYAML's classes are untyped
        """Raises ValueError, which says what is wrong."""
        self._left += _ADDED_PER_NODE
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= DEEPEST:
                raise ValueError("it is nested too deep")
            keys = set[str]() if isinstance(event, yaml.MappingStartEvent) else None
            self._open.append(_Collection(event.anchor, keys))
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = self._open.pop()
            self._place(ended.anchor, ended.nodes, ended.height)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                is_open = any(each.anchor == event.anchor for each in self._open)
                raise ValueError("found an alias within what it names" if is_open else "found undefined alias")
            nodes, height = self._anchors[event.anchor]
            self._left -= nodes
            if self._left < 0:
                raise ValueError("its aliases, written out, are too large")
            self._place(None, nodes, height)
        elif isinstance(event, yaml.ScalarEvent):
            self._place(event.anchor, 1, 0, event.value)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()

    def _place(self, anchor: str | None, nodes: int, height: int, scalar: str | None = None) -> None:
        """Counts a whole node to the collection that it is in."""
        if anchor:
            self._anchors[anchor] = nodes, height
        if not self._open:
            return
        within = self._open[-1]
        if len(self._open) + height > DEEPEST:
            raise ValueError("it is nested too deep")
        within.nodes += nodes
        within.height = max(within.height, height + 1)
        if within.keys is None:
            return
        if (
            not within.is_at_value
            and scalar is not None
            and (self._unique_keys or (self._unique_merge and scalar == _MERGE))
        ):
            if scalar in within.keys:
                raise ValueError(f"the key {scalar[:100]!r} is there a second time")
            within.keys.add(scalar)
        within.is_at_value = not within.is_at_value


def check_yaml(text: str, *, unique_keys: bool = False, first_line: int = 1) -> None:
    """Raises InvalidYaml where a stream is not YAML, such as one that is cut off, or has too many nodes, or too deep.

    `unique_keys`: a map that has a key twice is refused too. `first_line` is the number of the first line.
    """
    for _ in bounded_events(text, unique_keys=unique_keys, first_line=first_line):
        pass


def bounded_events(
    text: str, *, unique_keys: bool = False, first_line: int = 1, many_merges: bool = False
) -> Iterator[Any]:
    """The events of PyYAML that a stream has. `many_merges`: a map may have the merge key more than once.

    Raises:
        InvalidYaml: as `check_yaml`.
    """
    bounds, line = _Bounds(unique_keys=unique_keys, many_merges=many_merges), 1
    skipped = first_line - 1
    try:
        for event in yaml.parse(text, _PARSER):
            line = event.start_mark.line + 1 if event.start_mark else line
            bounds.take(event)
            yield event
    except ValueError as exc:
        raise InvalidYaml(f"line {skipped + line}: {exc}") from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        last = len(text.rstrip().splitlines()) or 1  # which a mark may be behind
        line = last if mark is None else min(mark.line + 1, last)
        column = f" (column {mark.column + 1})" if mark else ""
        raise InvalidYaml(f"line {skipped + line}: {exc.problem or exc.context}{column}") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise InvalidYaml(f"line {skipped + line}: {exc.reason}: character {exc.character:#x}") from exc


def read_yaml(text: str | bytes, *, unique_keys: bool = False) -> Any:  # noqa: ANN401  # what a decoder takes
    """The value of the one document of a text; None if it is empty. Raises InvalidYaml."""
    documents = list(read_documents(text, unique_keys=unique_keys))
    if len(documents) > 1:
        raise InvalidYaml("it has more than one document")
    return documents[0] if documents else None


def read_documents(text: str | bytes, *, unique_keys: bool = False) -> Iterator[Any]:
    """The value of each document of a text. Raises InvalidYaml before the first one, or with the number of its own."""
    decoded = _decoded(text)
    check_yaml(decoded, unique_keys=unique_keys)
    return _values_of(decoded, _KubectlLoader)


def read_texts(text: str | bytes) -> Any:  # noqa: ANN401  # lists, maps and texts
    """As `read_yaml` with unique keys; scalars are the texts that stand there, those without quotes a `PlainText`."""
    decoded = _decoded(text)
    check_yaml(decoded, unique_keys=True)
    documents = list(_values_of(decoded, _TextLoader))
    if len(documents) > 1:
        raise InvalidYaml("it has more than one document")
    return documents[0] if documents else None


def _decoded(text: str | bytes) -> str:
    try:
        return text if isinstance(text, str) else text.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidYaml("it is no text in UTF-8") from exc


def _values_of(text: str, loader: type) -> Iterator[Any]:
    number = 1
    try:
        for value in yaml.load_all(text, loader):
            yield value
            number += 1
    except Exception as exc:  # a value that is not what its tag says makes the library fail in any way Python can
        problem = exc.problem if isinstance(exc, yaml.MarkedYAMLError) and exc.problem else str(exc)
        mark = exc.problem_mark if isinstance(exc, yaml.MarkedYAMLError) else None
        where = f"line {mark.line + 1}" if mark else f"document {number}"
        raise InvalidYaml(f"{where}: {problem}") from exc


class _KubectlLoader(_PARSER):  # type: ignore[misc]  # chosen above
    pass


class _TextLoader(_PARSER):  # type: ignore[misc]  # chosen above
    pass


def _number_of(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    if ":" in node.value:  # in base 60, for which the library takes a time that grows with the square of the digits
        raise ValueError(f"{node.value[:100]!r} is no number")
    is_float = node.tag.endswith("float")
    return loader.construct_yaml_float(node) if is_float else loader.construct_yaml_int(node)


def _text_of(_loader: object, node: yaml.ScalarNode) -> str:
    return str(node.value) if node.style else PlainText(node.value)


_TAG = "tag:yaml.org,2002:"
_KubectlLoader.yaml_implicit_resolvers = {}
for _tag, _regexp, _first in (
    ("bool", "|".join(TRUE + FALSE), "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?)", "-+0123456789."),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", r"<<", "<"),
):
    _KubectlLoader.add_implicit_resolver(_TAG + _tag, re.compile(rf"(?:{_regexp})\Z"), list(_first))
for _tag in ("int", "float"):
    _KubectlLoader.add_constructor(_TAG + _tag, _number_of)
_TextLoader.yaml_implicit_resolvers = {}
_TextLoader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"<<\Z"), ["<"])
for _tag in ("str", "bool", "int", "float", "null", "timestamp"):
    _TextLoader.add_constructor(_TAG + _tag, _text_of)
