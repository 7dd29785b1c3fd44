"""Applies a JSON Patch to the text of one YAML document and keeps the rest of the text.

ruamel.yaml makes the edit. It keeps comments, order, quotes and anchors, and may indent anew. So the lines that the
edit changes are put between those of the text, which stay as they are to the byte. Only if that gives another value,
all is as ruamel.yaml writes it. JSON is read and written as such. The result is read again and compared with what the
patch must give. New texts are quoted where YAML 1.1, which kubectl reads, needs it.
"""

import contextlib
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
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from extender.bounded_yaml import InvalidYaml, check_yaml
from extender.kubernetes.pod_templates import Path
from extender.kubernetes.yaml_scalars import needs_quotes
from extender.manifests.stream import ManifestError
from extender.placement.patch import Json, Operation

_MOST_MERGES = 100  # of one document, with each of which ruamel.yaml compares all others
_Loaded: TypeAlias = Any  # what ruamel.yaml makes of a document, or its plain value


def read_document(text: str, line: int = 1) -> Json:
    """The plain value of a document; `line` is the number of its first line, for messages.

    Raises:
        ManifestError: it is not YAML, or too large when its aliases are written out.
    """
    return _plain(_load(text, line))


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
    for edited in _edited(text, steps, ops):
        made = _with_line_ends_of(text, edited)
        with contextlib.suppress(ManifestError):
            if _same(read_document(made), expected):
                return made
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
    if text.count("<<") > _MOST_MERGES:
        raise ManifestError(f"line {line} and after: it merges more than {_MOST_MERGES} maps")
    try:
        check_yaml(text, first_line=line)
        return _yaml().load(text)
    except InvalidYaml as exc:
        raise ManifestError(str(exc)) from exc
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + line}" if mark else "somewhere"
        raise ManifestError(f"{where}: {exc.problem or exc.context}") from exc
    except (YAMLError, ValueError, RecursionError, NotImplementedError) as exc:
        raise ManifestError(f"line {line} and after: {exc!s:.200}") from exc


def _plain(value: object) -> Json:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


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


def _edited(text: str, steps: Sequence[Path], operations: Sequence[Operation]) -> Iterator[str]:
    """What the text may become: with its own lines where that can be, else as ruamel.yaml writes all of it."""
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            yield _edit_json(text, steps, operations)
            return
    bare = text.replace("\r\n", "\n")
    try:
        after = _round_trip(bare, steps, operations)
        yield _onto(bare, _round_trip(bare, (), ()), after)
        yield after
    except (ManifestError, YAMLError):
        return


def _edit_json(text: str, steps: Sequence[Path], operations: Sequence[Operation]) -> str:
    """A document that is JSON, indented as it was. Raises ValueError if it is none."""
    document = json.loads(text)
    for step, operation in zip(steps, operations, strict=True):
        document = _apply(document, step, operation)
    indent = re.search(r"\n([ \t]+)\S", text)
    separators = None if indent or ": " in text else (",", ":")
    made = json.dumps(document, indent=indent[1] if indent else None, separators=separators, ensure_ascii=False)
    return made + text[len(text.rstrip()) :]


def _onto(text: str, before: str, after: str) -> str:
    """The text with the lines by which `after` differs from `before`, which is the text as ruamel.yaml writes it.

    New lines are shifted as the line before them is, and come before comments that are indented less than they are.
    """
    own, plain, made = (part.removesuffix("\n").split("\n") for part in (text, before, after))
    stands = _lines_behind(plain, own)
    lines = stands[0]
    for tag, start, end, new, new_end in difflib.SequenceMatcher(None, plain, made, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [line for each in stands[start + 1 : end + 1] for line in each]
            continue
        shift = _indent(stands[start][0]) - _indent(plain[start - 1]) if start and stands[start] else 0
        added = [" " * (_indent(line) + shift) + line.lstrip(" ") for line in made[new:new_end]]
        at = len(lines)
        while added and at and _is_about_less(lines[at - 1], _indent(added[0])):
            at -= 1
        lines[at:at] = added
    return "".join(f"{line}\n" for line in lines)


def _lines_behind(plain: Sequence[str], own: Sequence[str]) -> list[list[str]]:
    """For each line of `plain` the lines of `own` that it stands for; before them those at the head of `own`."""
    stands: list[list[str]] = [[] for _ in range(len(plain) + 1)]
    bare_plain, bare_own = ([line.strip() for line in lines] for lines in (plain, own))
    for tag, start, end, at, at_end in difflib.SequenceMatcher(
        None, bare_plain, bare_own, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            for index in range(end - start):
                stands[start + index + 1].append(own[at + index])
        else:
            stands[min(start + 1, end)] += own[at:at_end]
    return stands


def _is_about_less(line: str, indent: int) -> bool:
    return not line.strip() or (line.lstrip().startswith("#") and _indent(line) < indent)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _quoted(value: object) -> object:
    """The value, whose texts are written with quotes where they need them."""
    if isinstance(value, dict):
        return {_quoted_text(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    return _quoted_text(value) if isinstance(value, str) else value


def _quoted_text(text: str) -> str:
    return SingleQuotedScalarString(text) if needs_quotes(text) else text


_LIST = re.compile(r"^( *)(?:- +)*[\w./\"'-]+:[ \t]*(?:#.*)?\n(?:\s*(?:#.*)?\n)*( *)- ", re.MULTILINE)


def _indents_lists(text: str) -> bool:
    """Whether the first list under a key is indented more than the key."""
    found = _LIST.search(text)
    if found is None:
        return False
    before = found[0][: len(found[0]) - len(found[0].lstrip(" -"))]
    return len(found[2]) > len(before)


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
    waiting = [document]
    while waiting:
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
