"""Applies a JSON Patch to the text of one document and changes only the lines that must change.

What the patch gives is compared with what the text says, part by part, and each difference becomes a piece of text at
the place of its part: new lines take the column of their siblings, flow style and JSON get their parts within. All
other bytes stay. The result is read again and compared with what the patch must give. New texts are quoted where YAML
1.1, which kubectl reads, needs it.
"""

import contextlib
import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from extender.bounded_yaml import InvalidYaml
from extender.kubernetes.documents import Json, JsonObject
from extender.kubernetes.pod_templates import Path
from extender.manifests.stream import ManifestError, node_of
from extender.placement.patch import Operation
from extender.yaml_nodes import BYTE_ORDER_MARK, Pair, TextNode, compose, is_merge
from extender.yaml_values import key_of, value_of

_Value: TypeAlias = Any  # a plain value on the way to a part of it
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # in JSON, two of which are one character; no YAML
# Words and the first characters of numbers, dates and marks, in YAML 1.1 and 1.2. Kubernetes' YAML reader takes y and
# n as booleans, which other readers of YAML 1.1 do not.
# https://yaml.org/type/ and https://github.com/yaml/go-yaml/blob/v2.4.3/resolve.go
_READ_OTHERWISE = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null)|[-+.0-9~=<][-+.:~=<\w]*|")
_PLAIN = re.compile(r"[\w./][\w./-]*", re.ASCII)


def edit_document(text: str, operations: Sequence[tuple[Path, Operation]]) -> str:
    """The text with these operations applied, each below its path.

    Raises:
        ManifestError: the text cannot be edited without a change of anything else.
    """
    mark, text = text[: text.startswith(BYTE_ORDER_MARK)], text.removeprefix(BYTE_ORDER_MARK)
    is_json, before = _read_json(text)
    root = node_of(_SURROGATE.sub(r"\\u0000", text) if is_json else text)
    before = before if is_json else value_of(root)
    after = copy.deepcopy(before)
    for path, operation in operations:
        _apply(after, (*path, *_steps(operation.path)), operation)
    if root is None or _same(before, after):
        return mark + text
    for apart in (False, True):
        made = _Editor(text, root, is_json=is_json, apart=apart).edited(before, after)
        with contextlib.suppress(InvalidYaml, ValueError):
            if _same(_read_json(made)[1] if is_json else value_of(compose(made)), after):
                return mark + made
    raise ManifestError("its YAML cannot be edited without a change of anything else")


def _read_json(text: str) -> tuple[bool, Json]:
    """Whether the text is an object in JSON, and its value."""
    bare = text.lstrip(" \t\r\n")
    try:
        return bare[:1] == "{", json.loads(bare) if bare[:1] == "{" else None
    except (ValueError, RecursionError):
        return False, None


def _same(one: Json, other: Json) -> bool:
    """Whether both are equal as JSON: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _steps(pointer: str) -> tuple[str, ...]:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def _apply(document: Json, steps: Path, operation: Operation) -> None:
    parent: _Value = document
    for step in steps[:-1]:
        parent = parent[int(step)] if isinstance(parent, list) else parent[step]
    key: _Value = int(steps[-1]) if isinstance(parent, list) else steps[-1]
    if operation.op == "remove":
        del parent[key]
    elif operation.op == "add" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(operation.value))
    else:
        parent[key] = copy.deepcopy(operation.value)


class _Edit(NamedTuple):
    """A text that replaces a piece of the document."""

    start: int
    end: int
    text: str


class _Editor:
    """Collects the edits of one text. `apart`: an alias keeps its value when the node with its anchor changes."""

    def __init__(self, text: str, root: TextNode, *, is_json: bool, apart: bool) -> None:
        self._text = text
        self._root = root
        self._is_json = is_json
        self._apart = apart
        self._edits: list[_Edit] = []
        self._anchored: dict[int, Json] = {}  # what anchored nodes have become
        self._step, self._offset = next(_styles(root, tuple), 2), next(_styles(root, list), 0)

    def edited(self, before: Json, after: Json) -> str:
        """The text, edited so that its value becomes `after`."""
        self._change(self._root, before, after, 0, in_flow=self._root.is_flow)
        made, at = list[str](), 0
        for _, edit in sorted(enumerate(self._edits), key=lambda each: (each[1].start, each[1].end, each[0])):
            made += self._text[at : edit.start], edit.text
            at = max(edit.end, at)
        return "".join([*made, self._text[at:]])

    def _change(self, node: TextNode, before: Json, after: Json, column: int, *, in_flow: bool) -> None:
        """Edits a node's text so that its value becomes `after`; `column` is that of the keys or dashes around it."""
        if before == after:
            return
        if isinstance(node.content, TextNode):
            if self._apart or self._anchored.get(id(node.content)) != after:
                self._replace(node, after, column, in_flow=in_flow)
            return
        if node.aliases:
            self._anchored[id(node)] = after
            if self._apart:
                self._move_anchor(node, before)
        content = node.content
        if isinstance(content, tuple) and content and isinstance(before, dict) and isinstance(after, dict) and after:
            self._change_map(node, content, before, after)
        elif isinstance(content, list) and content and isinstance(before, list) and isinstance(after, list) and after:
            self._change_list(node, content, before, after)
        else:
            self._replace(node, after, column, in_flow=in_flow)

    def _move_anchor(self, node: TextNode, before: Json) -> None:
        """Gives the anchor, and the value that the other aliases keep, to the first alias."""
        properties = self._text[node.start : node.inner].replace(f"&{node.anchor}", "", 1).lstrip(" ")
        start = len(self._text[: node.start].rstrip(" ")) if properties[:1] in ("\r", "\n") else node.start
        self._edits.append(_Edit(start, node.inner, properties))
        first = node.aliases[0]
        self._edits.append(_Edit(first.start, first.end, f"&{node.anchor} {self._flow(before)}"))

    def _change_map(self, node: TextNode, pairs: tuple[Pair, ...], before: JsonObject, after: JsonObject) -> None:
        own = {key_of(key): (key, value) for key, value in pairs if not is_merge(key)}
        times = Counter(key_of(key) for key, _ in pairs if not is_merge(key))
        for name in times:
            if times[name] > 1 and before.get(name) != after.get(name):
                raise ManifestError(f"the key {name!r:.100} to write below is there a second time")
        column = pairs[0][0].column
        added = {}
        for name, wanted in after.items():
            if name in own:
                self._change(own[name][1], before[name], wanted, column, in_flow=node.is_flow)
            elif name not in before or before[name] != wanted:
                added[name] = wanted
        gone = [index for index, (key, _) in enumerate(pairs) if not is_merge(key) and key_of(key) not in after]
        self._remove(pairs, gone, in_flow=node.is_flow)
        if added and node.is_flow:
            self._add_in_flow(node, list(pairs), len(pairs), self._members(added))
        elif added:
            self._add_lines(node, column, self._lines(added, column, self._style_of(pairs)))

    def _change_list(self, node: TextNode, items: list[TextNode], before: list[Json], after: list[Json]) -> None:
        members = [(each, each) for each in items]
        if (gone := _missing(before, after)) is not None:
            self._remove(members, gone, in_flow=node.is_flow)
            return
        same = next(
            (i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
            min(len(before), len(after)),
        )
        tail = 0
        while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
            tail += 1
        old, new = range(same, len(before) - tail), range(same, len(after) - tail)
        for index, at in zip(old, new, strict=False):
            self._change(items[index], before[index], after[at], node.column, in_flow=node.is_flow)
        self._remove(members, old[len(new) :], in_flow=node.is_flow)
        added = [after[at] for at in new[len(old) :]]
        index = same + len(old)
        if added and node.is_flow:
            self._add_in_flow(node, members, index, [self._flow(each) for each in added])
        elif added:
            lines = self._lines(added, node.column, self._style_of(()))
            if index == len(items):
                self._add_lines(node, node.column, lines)
            else:
                at = self._text.rfind("\n", 0, items[index].start) + 1
                self._edits.append(_Edit(at, at, "".join(line + self._line_end(at) for line in lines)))

    def _remove(self, members: Sequence[Pair], gone: Sequence[int], *, in_flow: bool) -> None:
        """Removes keys with their values, or items, of a collection that keeps others."""
        for index in gone:
            first, last = members[index]
            line = self._text.rfind("\n", 0, first.start) + 1
            if not (in_flow or self._text[line : first.start].strip(" -" if first is last else " ")):
                self._edits.append(_Edit(line, self._behind(last), ""))
            elif any(each not in gone for each in range(index + 1, len(members))):
                self._edits.append(_Edit(first.start, members[index + 1][0].start, ""))
            else:  # with the comma before it
                self._edits.append(_Edit(members[index - 1][1].end, last.end, ""))

    def _replace(self, node: TextNode, after: Json, column: int, *, in_flow: bool) -> None:
        """Replaces the text of a node: in its line, or in lines below it."""
        if in_flow or not isinstance(after, dict | list) or not after or "\n" in self._text[node.start : node.end]:
            end = _content_end(self._text, node)
            space = "" if self._text[node.inner - 1 : node.inner] in (" ", "\n", "[", "{", "", "\t") else " "
            self._edits.append(_Edit(node.inner, end, space + self._flow(after)))
            return
        start = len(self._text[: node.inner].rstrip(" \t")) if not node.anchor else node.inner
        if start < node.end:
            self._edits.append(_Edit(start, node.end, ""))
        step, offset = self._style_of(())
        inner = column + (step if isinstance(after, dict) else offset)
        at = self._behind(node)
        self._put_lines(at, self._lines(after, inner, (step, offset)))

    def _add_lines(self, node: TextNode, column: int, lines: list[str]) -> None:
        """Adds lines after a collection, and after the comments that belong to it."""
        at = self._behind(_last(node))
        end = at
        while end < len(self._text):
            line, end = self._text[end : self._next_line(end)], self._next_line(end)
            bare = line.strip()
            if bare and not (bare[0] == "#" and len(line) - len(line.lstrip(" ")) >= column):
                break
            if bare:
                at = end
        self._put_lines(at, lines)

    def _put_lines(self, at: int, lines: list[str]) -> None:
        end = self._line_end(at)
        if at and self._text[at - 1] != "\n":  # behind the last line, which has no end
            self._edits.append(_Edit(at, at, "".join(end + line for line in lines)))
        else:
            self._edits.append(_Edit(at, at, "".join(line + end for line in lines)))

    def _add_in_flow(self, node: TextNode, members: list[Pair], index: int, added: list[str]) -> None:
        """Adds members before the one of that index, or behind the last, in lines of their own if that has one."""
        beside = members[min(index, len(members) - 1)][0]
        start = self._text.rfind("\n", 0, beside.start) + 1
        lead = self._text[start : beside.start]
        is_in_lines = start > node.start and not lead.strip()
        if is_in_lines:
            opening = self._text[self._text.rfind("\n", 0, node.start) + 1 :]
            outer = opening[: len(opening) - len(opening.lstrip(" \t"))]
            unit = lead.removeprefix(outer) or "  "
            added = [self._spread(each, lead, unit, self._line_end(start)) for each in added]
        between = "," + (self._line_end(start) + lead if is_in_lines else " " if self._is_spaced else "")
        before = index < len(members) or (is_in_lines and isinstance(node.content, tuple))
        if before:
            self._edits.append(_Edit(beside.start, beside.start, "".join(each + between for each in added)))
        else:
            end = members[-1][1].end
            self._edits.append(_Edit(end, end, "".join(between + each for each in added)))

    @property
    def _is_spaced(self) -> bool:
        return not self._is_json or ", " in self._text or '": ' in self._text

    def _spread(self, member: str, lead: str, unit: str, end: str) -> str:
        """A member as lines of JSON, indented as those around it."""
        if not self._is_json:
            return member
        is_list_item = member[:1] in "[{"
        value = json.loads(member if is_list_item else f"{{{member}}}")
        made = json.dumps(value, indent=unit, ensure_ascii=False)
        if not is_list_item:
            made = "\n".join(line.removeprefix(unit) for line in made.split("\n")[1:-1])
        return made.replace("\n", end + lead)

    def _members(self, values: JsonObject) -> list[str]:
        colon = ": " if self._is_spaced else ":"
        return [f"{self._scalar(key)}{colon}{self._flow(value)}" for key, value in values.items()]

    def _flow(self, value: Json) -> str:
        between = ", " if self._is_spaced else ","
        if isinstance(value, dict):
            return "{" + between.join(self._members(value)) + "}"
        if isinstance(value, list):
            return "[" + between.join(self._flow(each) for each in value) + "]"
        return self._scalar(value)

    def _scalar(self, value: Json) -> str:
        if not isinstance(value, str) or self._is_json:
            return json.dumps(value, ensure_ascii=False)
        if _PLAIN.fullmatch(value) and not _READ_OTHERWISE.fullmatch(value):
            return value
        return "'" + value.replace("'", "''") + "'" if value.isprintable() else json.dumps(value)

    def _lines(self, value: Json, column: int, style: tuple[int, int]) -> list[str]:
        """The lines of a map or list that begins in the column."""
        lead, (step, offset) = " " * column, style
        made = []
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict | list) and item:
                    first, *others = self._lines(item, column + 2, style)
                    made += [f"{lead}- {first.lstrip(' ')}", *others]
                else:
                    made.append(f"{lead}- {self._flow(item)}")
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, dict | list) and item:
                    inner = column + (step if isinstance(item, dict) else offset)
                    made += [f"{lead}{self._scalar(key)}:", *self._lines(item, inner, style)]
                else:
                    made.append(f"{lead}{self._scalar(key)}: {self._flow(item)}")
        return made

    def _style_of(self, pairs: Sequence[Pair]) -> tuple[int, int]:
        """By how much maps and lists are indented under their keys: as beside them, or else as in the document."""
        step, offset = _indent(pairs, tuple), _indent(pairs, list)
        return self._step if step is None else step, self._offset if offset is None else offset

    def _behind(self, node: TextNode) -> int:
        """The start of the line after the node's last."""
        end = _content_end(self._text, node)
        return end if self._text[end - 1 : end] == "\n" else self._next_line(end)

    def _next_line(self, at: int) -> int:
        return self._text.find("\n", at) + 1 or len(self._text)

    def _line_end(self, at: int) -> str:
        before = self._text.rfind("\n", 0, at)
        return "\r\n" if before > 0 and self._text[before - 1] == "\r" else "\n"


def _missing(before: list[Json], after: list[Json]) -> list[int] | None:
    """The indices of items of `before` that `after` lacks; None if the others are not all of `after` in order."""
    left, gone = list(after), []
    for index, each in enumerate(before):
        if left and left[0] == each:
            del left[0]
        else:
            gone.append(index)
    return None if left else gone


def _indent(pairs: Sequence[Pair], kind: type) -> int | None:
    for key, value in pairs:
        if isinstance(value.content, kind) and not value.is_flow and value.line > key.line and key.is_flow:
            return value.column - key.column
    return None


def _styles(node: TextNode, kind: type) -> Iterator[int]:
    """By how much the lists or maps in lines are indented under their keys, in the order of the text."""
    waiting = [node]
    while waiting:
        content = waiting.pop().content
        if isinstance(content, tuple):
            if (found := _indent(content, kind)) is not None:
                yield found
            waiting += [value for _, value in reversed(content)]
        elif isinstance(content, list):
            waiting += reversed(content)


def _last(node: TextNode) -> TextNode:
    while not node.is_flow and not isinstance(node.content, TextNode) and node.content:
        last = node.content[-1]
        node = last[1] if isinstance(last, tuple) else last  # type: ignore[assignment]  # a text is in flow
    return node


def _content_end(text: str, node: TextNode) -> int:
    """Where a node ends, without the blank lines and comments that follow a block scalar."""
    last = _last(node)
    if text[last.inner : last.inner + 1] in ("|", ">") and last.end > last.inner + 1:
        header = text[last.inner : text.find("\n", last.inner)]
        if "+" not in header.partition("#")[0]:
            return len(text[: last.end].rstrip()) + (1 if text[: last.end].rstrip() != text[: last.end] else 0)
    return last.end
