"""Applies a JSON Patch to the text of one YAML document and keeps the rest of the text.

Most patches add keys to maps and items to lists in block style. They are written as new lines between the lines that
are there, which stay as they are to the byte. What lies in flow style, behind an alias or in a merged map is edited by
ruamel.yaml instead, which keeps comments, order, quotes and anchors, and may indent anew. Either result is read again
and compared with what the patch must give. New texts are quoted where YAML 1.1, which kubectl reads, needs it.
"""

import copy
import difflib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from extender.kubernetes.pod_templates import Path
from extender.kubernetes.yaml_scalars import needs_quotes
from extender.manifests.stream import DEEPEST, ManifestError
from extender.placement.patch import Json, Operation

_MOST_NODES = 1_000_000  # of one document: aliases of aliases could name more than memory holds
_Loaded: TypeAlias = Any  # what ruamel.yaml makes of a document, or its plain value
_NULLS = ("", "~", "null", "Null", "NULL")


class Unspliceable(Exception):
    """The edit needs more than new lines."""


def read_document(text: str, line: int = 1) -> Json:
    """The plain value of a document; `line` is the number of its first line, for messages.

    Raises:
        ManifestError: it is not YAML, or too large when its aliases are written out.
    """
    return _plain_document(_load(text, line), line)


def edit_document(text: str, operations: Sequence[tuple[Path, Operation]]) -> str:
    """The text with these operations applied, each below its path.

    Raises:
        ManifestError: the text cannot be edited without a change of anything else.
    """
    expected = read_document(text)
    steps = [(*path, *_steps(operation.path)) for path, operation in operations]
    ops = [operation for _, operation in operations]
    for step, operation in zip(steps, ops, strict=True):
        expected = _apply(expected, step, operation)
    for edit in (_edit_json, _splice, _round_trip):
        try:
            made = _with_line_ends_of(text, edit(text, steps, ops))
            if _same(read_document(made), expected):
                return made
        except (Unspliceable, ManifestError, YAMLError):
            continue
    raise ManifestError("its YAML cannot be edited without a change of anything else")


def _yaml(text: str = "") -> YAML:
    """A reader and writer that keeps what it can, and indents lists as the first list in `text` is."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 30
    yaml.brace_single_entry_mapping_in_flow_sequence = True  # {a: b} in a list stays so
    if _indents_lists(text):
        yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _load(text: str, line: int) -> _Loaded:
    try:
        return _yaml().load(text)
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + line}" if mark else "somewhere"
        raise ManifestError(f"{where}: {exc.problem or exc.context}") from exc
    except (YAMLError, ValueError, RecursionError, NotImplementedError) as exc:
        raise ManifestError(f"line {line} and after: {exc!s:.200}") from exc


def _plain_document(loaded: object, line: int) -> Json:
    left = [_MOST_NODES]

    def plain(value: object, depth: int) -> Json:
        left[0] -= 1
        if left[0] < 0 or depth > DEEPEST:
            raise ManifestError(f"line {line} and after: its aliases make it too large or too deep")
        if isinstance(value, dict):
            return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner, depth + 1) for inner in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value)
        return float(value) if isinstance(value, float) else str(value)

    return plain(loaded, 0)


def _same(one: Json, other: Json) -> bool:
    """Whether both are equal as JSON: 1 is not true, and not-a-number equals itself."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _steps(pointer: str) -> tuple[str, ...]:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def _apply(document: Json, steps: Path, operation: Operation) -> Json:
    """The document with one operation applied; it is changed in place."""
    parent: _Loaded = document
    for step in steps[:-1]:
        parent = parent[int(step)] if isinstance(parent, list) else parent[step]
    _apply_to(parent, steps[-1], operation)
    return document


def _apply_to(parent: _Loaded, key: str | int, operation: Operation) -> None:
    if isinstance(parent, list):
        index = int(key)
        if operation.op == "add":
            parent.insert(index, copy.deepcopy(operation.value))
        elif operation.op == "remove":
            del parent[index]
        else:
            parent[index] = copy.deepcopy(operation.value)
    elif operation.op == "remove":
        del parent[key]
    else:
        parent[key] = copy.deepcopy(operation.value)


def _with_line_ends_of(text: str, made: str) -> str:
    """`made` whose old lines end as in `text`, and whose new lines end as the line before them does."""
    before, after = text.split("\n"), made.replace("\r\n", "\n").split("\n")
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in before[:-1]]
    if len(set(ends)) < 2:
        return (ends[0] if ends else "\n").join(after)
    bare = [line.removesuffix("\r") for line in before]
    ends.append("")  # of the last
    kept = [""] * len(after)
    for _, old, old_end, new, new_end in difflib.SequenceMatcher(None, bare, after, autojunk=False).get_opcodes():
        for index in range(min(old_end - old, new_end - new)):  # a line that stays, or is changed
            kept[new + index] = ends[old + index]
    end, lines = ends[0], []
    for line, own in zip(after[:-1], kept[:-1], strict=True):
        end = own or end
        lines.append(line + end)
    return "".join([*lines, after[-1]])


def _edit_json(text: str, steps: Sequence[Path], operations: Sequence[Operation]) -> str:
    """A document that is JSON, indented as it was."""
    if not text.lstrip().startswith("{"):
        raise Unspliceable
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise Unspliceable from exc
    for step, operation in zip(steps, operations, strict=True):
        document = _apply(document, step, operation)
    indent = re.search(r"\n([ \t]+)\S", text)
    separators = None if indent or ": " in text else (",", ":")
    made = json.dumps(document, indent=indent[1] if indent else None, separators=separators, ensure_ascii=False)
    return made + text[len(text.rstrip()) :]


# New lines between those that are there.


def _splice(text: str, steps: Sequence[Path], operations: Sequence[Operation]) -> str:
    for step, operation in zip(steps, operations, strict=True):
        text = _splice_one(text, step, operation)
    return text


def _splice_one(text: str, steps: Path, operation: Operation) -> str:
    root = _yaml().compose(text)
    node = _find(root, steps[:-1])
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if isinstance(node, MappingNode):
        key = str(steps[-1])
        old = next((pair for pair in node.value if pair[0].value == key), None)
        if old is not None:
            key_node, value = old
            return _fill(lines, node, (key_node, value), operation)
        return _add_below(lines, node, _dump({key: operation.value}, text), operation)
    if isinstance(node, SequenceNode) and not node.value and operation.op == "add":
        return _splice_one(text, steps[:-1], Operation("replace", operation.path, [operation.value]))
    if isinstance(node, SequenceNode) and int(steps[-1]) == len(node.value):
        return _add_below(lines, node, _dump([operation.value], text), operation)
    raise Unspliceable


def _find(root: Node, steps: Path) -> Node:
    """The node at the path; refuses what an alias, an anchor or a merge may share."""
    node = root
    for step in steps:
        if isinstance(node, MappingNode):
            found: Node | None = next((value for key, value in node.value if key.value == step), None)
        elif isinstance(node, SequenceNode):
            found = node.value[int(step)]
        else:
            raise Unspliceable
        if found is None or found.anchor:
            raise Unspliceable
        node = found
    return node


def _add_below(lines: list[str], node: CollectionNode, made: str, operation: Operation) -> str:
    """Adds lines after the last of a map or list, and after comments that are indented as it is."""
    if operation.op != "add" or node.flow_style or not node.value:
        raise Unspliceable
    first = node.value[0]
    column = (first[0] if isinstance(first, tuple) else first).start_mark.column
    if isinstance(node, SequenceNode):
        column = node.start_mark.column
    after = _last_line(node, lines) + 1
    for index in range(after, len(lines)):
        if not (bare := lines[index].strip()):
            continue
        if not bare.startswith("#") or len(lines[index]) - len(lines[index].lstrip()) < column:
            break
        after = index + 1
    return "".join([*lines[:after], _indented(made, column), *lines[after:]])


def _fill(lines: list[str], node: MappingNode, pair: tuple[Node, Node], operation: Operation) -> str:
    """Writes a value for a key that has null, `[]` or `{}` on its line."""
    key, value = pair
    line = lines[key.start_mark.line]
    if isinstance(value, ScalarNode) and not value.value:  # its mark may be on a later line
        empty, after = value.style is None, line[key.end_mark.column :].strip().removeprefix(":").strip()
    else:
        empty = value.value in _NULLS and value.style is None if isinstance(value, ScalarNode) else not value.value
        empty = empty and value.end_mark.line == key.start_mark.line
        after = line[value.end_mark.column :].strip()
    if operation.op == "remove" or not empty or node.flow_style or value.anchor:
        raise Unspliceable
    if after and not after.startswith("#"):
        raise Unspliceable
    made = _dump({"key": operation.value}, "".join(lines)).removeprefix("key:")
    if not made.startswith("\n"):
        raise Unspliceable
    column = key.start_mark.column
    note = f"  {after}" if after else ""
    below = _indented(made[1:], column)
    before = line[: key.end_mark.column]
    return "".join([*lines[: key.start_mark.line], f"{before}:{note}\n", below, *lines[key.start_mark.line + 1 :]])


def _last_line(node: Node, lines: Sequence[str]) -> int:
    """The number of the last line, from 0, that a node's text is on."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        if not isinstance(last, tuple):
            return max(int(node.start_mark.line), _last_line(last, lines))
        key, value = last
        key_line: int = key.end_mark.line
        aliased = value.start_mark.index < key.start_mark.index
        return key_line if aliased else max(key_line, _last_line(value, lines))
    line: int = node.end_mark.line
    if node.end_mark.column == 0 and line > node.start_mark.line:
        line -= 1
    line = min(line, len(lines) - 1)
    while line > node.start_mark.line and (not (bare := lines[line].strip()) or _is_outside(lines[line], bare, node)):
        line -= 1
    return line


def _is_outside(line: str, bare: str, node: Node) -> bool:
    """Whether a line after a block scalar is a comment and not part of it: it is indented less than the scalar."""
    if not isinstance(node, ScalarNode) or node.style not in ("|", ">") or not bare.startswith("#"):
        return False
    return len(line) - len(line.lstrip()) <= 0


def _dump(value: object, text: str) -> str:
    made = io.StringIO()
    _yaml(text).dump(_quoted(value), made)
    lines = made.getvalue()
    if isinstance(value, list) and lines.startswith("  -"):  # a list at the top is indented too
        lines = "".join(line[2:] for line in lines.splitlines(keepends=True))
    return lines


def _quoted(value: object) -> object:
    """The value, whose texts are written with quotes where they need them."""
    if isinstance(value, dict):
        return {_quoted_text(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    return _quoted_text(value) if isinstance(value, str) else value


def _quoted_text(text: str) -> str:
    return SingleQuotedScalarString(text) if needs_quotes(text) else text


def _indented(text: str, column: int) -> str:
    return "".join(" " * column + line for line in text.splitlines(keepends=True))


_LIST = re.compile(r"^( *)(?:- +)*[\w./\"'-]+:[ \t]*(?:#.*)?\n(?:\s*(?:#.*)?\n)*( *)- ", re.MULTILINE)


def _indents_lists(text: str) -> bool:
    """Whether the first list under a key is indented more than the key."""
    found = _LIST.search(text)
    if found is None:
        return False
    before = found[0][: len(found[0]) - len(found[0].lstrip(" -"))]
    return len(found[2]) > len(before)


# ruamel.yaml's round trip.


def _round_trip(text: str, steps: Sequence[Path], operations: Sequence[Operation]) -> str:
    yaml = _yaml(text)
    document = yaml.load(text)
    uses = Counter(id(value) for value in _collections(document))
    for step, operation in zip(steps, operations, strict=True):
        quoted = Operation(operation.op, operation.path, _quoted(operation.value))
        key = step[-1] if isinstance(step[-1], int) else _quoted_text(step[-1])
        _apply_to(_own(document, step[:-1], uses), key, quoted)
    for value in _collections(document):
        if value.anchor.value:
            value.yaml_set_anchor(value.anchor.value, always_dump=True)
    made = io.StringIO()
    yaml.dump(document, made)
    return made.getvalue()


def _collections(document: object) -> Iterator[CommentedMap | CommentedSeq]:
    """Every use of a map or list in the document, those behind aliases as often as they are used."""
    left = _MOST_NODES
    waiting = [document]
    while waiting:
        left -= 1
        if left < 0:
            raise Unspliceable
        found = waiting.pop()
        if isinstance(found, CommentedMap):
            yield found
            waiting += list(found.values())
        elif isinstance(found, CommentedSeq):
            yield found
            waiting += list(found)


def _own(document: _Loaded, steps: Path, uses: Counter[int]) -> _Loaded:
    """The value at the path, of which every part that others share on the way has become a copy."""
    found = document
    for step in steps:
        key = int(step) if isinstance(found, CommentedSeq) else step
        inner = found[key]
        if uses[id(inner)] > 1:
            inner = copy.deepcopy(inner)
            for value in _collections(inner):
                value.yaml_set_anchor(None)
            found[key] = inner
        found = inner
    return found
