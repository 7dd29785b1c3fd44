"""Reads YAML from outside in time and memory that grow with its text: aliases and merges may add little to it.

Every reader of YAML goes through here: `yaml_nodes` makes nodes of these events, and `yaml_values` values of nodes.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from extender.errors import ExtenderError

DEEPEST = 200
"""How deep a document may be nested, with its aliases written out."""
_ADDED, _ADDED_PER_NODE = 10_000, 4  # nodes that aliases may make, and as many more for each that is written
_MERGE = "<<"
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidYaml(ExtenderError):
    """A text that is no YAML, or that is not read; the message names the line and what is wrong."""


class _Collection(msgspec.Struct):
    """A list or map that has not ended: how many nodes it has, and how deep it is, with aliases written out."""

    anchor: str | None
    keys: set[str] | None  # of a map
    nodes: int = 1
    height: int = 0
    is_at_value: bool = False


class _Bounds:
    """The nodes and the nesting of a stream so far."""

    def __init__(self, *, unique_keys: bool, many_merges: bool) -> None:
        self._unique_keys = unique_keys
        self._unique_merge = not many_merges
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[int, int]] = {}  # nodes and height of what each names
        self._left = _ADDED

    def take(self, event: Any) -> None:  # noqa: ANN401  # PyYAML's classes are untyped
        """Counts an event. Raises ValueError, which says what is wrong."""
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
        """Counts a node that has ended as a part of the collection around it."""
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


def bounded_events(
    text: str, *, unique_keys: bool = False, first_line: int = 1, many_merges: bool = False
) -> Iterator[Any]:
    """The events of PyYAML that a stream has.

    `unique_keys`: a map that has a key twice is refused. `many_merges`: a map may have the merge key more than once.
    `first_line` is the number of the first line.

    Raises:
        InvalidYaml: the stream is not YAML from there on, such as one that is cut off, or has too many nodes, or too
            deep.
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
