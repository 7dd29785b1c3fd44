"""The parts of a text in YAML as kubectl takes it apart, with their places in the text.

kubectl reads with sigs.k8s.io/yaml, whose reader is Go's: an anchor may be given again, and in flow style a colon may
end a scalar.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import yaml

from extender.bounded_yaml import InvalidYaml, bounded_events


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
TAG = "tag:yaml.org,2002:"
"""The beginning of the names of YAML's own tags."""
# In flow style kubectl takes colons before an indicator for a part of the scalar, which PyYAML refuses.
_COLONS = re.compile(r"""(?<=[^\s,\[\]{}"':]):+(?=[,\[\]{}])""")
BYTE_ORDER_MARK = "\ufeff"  # PyYAML takes it for nothing where a line begins, and kubectl for a character
_PRIVATE = range(0xE000, 0xF900)  # characters of which the first that a text lacks may stand for another


def compose(text: str, first_line: int = 1, repeats: list[TextNode] | None = None) -> TextNode | None:
    """The first document of a text, of which kubectl reads no other; None if it is empty.

    A byte-order mark at the start is not counted in positions. `repeats` gets the keys that their maps have already.
    Raises InvalidYaml.
    """
    return next(_documents(text, first_line, [] if repeats is None else repeats), None)


def compose_only(text: str | bytes, *, unique_keys: bool) -> TextNode | None:
    """The one document of a text; None if it is empty. `unique_keys`: no map has a key twice. Raises InvalidYaml."""
    try:
        decoded = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as exc:
        raise InvalidYaml("it is no text in UTF-8") from exc
    found = list(islice(_documents(decoded, 1, [], unique_keys=unique_keys, many_merges=False), 2))
    if len(found) > 1:
        raise InvalidYaml("it has more than one document")
    return found[0] if found else None


def _documents(
    text: str, first_line: int, repeats: list[TextNode], *, unique_keys: bool = False, many_merges: bool = True
) -> Iterator[TextNode]:
    text = text.removeprefix(BYTE_ORDER_MARK)
    if text.startswith(BYTE_ORDER_MARK):
        raise InvalidYaml(f"line {first_line}: a second byte-order mark")
    scanned, characters = _as_go_scans(text)
    composer = _Composer(text, first_line, repeats, characters)
    events = bounded_events(scanned, unique_keys=unique_keys, first_line=first_line, many_merges=many_merges)
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            composer.end(event)
        elif isinstance(event, yaml.NodeEvent):
            composer.begin(event)
        elif isinstance(event, yaml.DocumentEndEvent) and composer.root:
            yield composer.root
            composer = _Composer(text, first_line, repeats, characters)


def _as_go_scans(text: str) -> tuple[str, dict[int, str]]:
    """A text of the same length that PyYAML scans as kubectl scans this one, and what its placeholders stand for."""
    unused = (chr(each) for each in _PRIVATE if chr(each) not in text)
    characters: dict[int, str] = {}
    if BYTE_ORDER_MARK in text and (mark := next(unused, "")):
        characters[ord(mark)], text = BYTE_ORDER_MARK, text.replace(BYTE_ORDER_MARK, mark)
    if _COLONS.search(text) and (colon := next(unused, "")):
        characters[ord(colon)], text = ":", _COLONS.sub(lambda found: colon * len(found[0]), text)
    return text, characters


class _Composer:
    """Makes the nodes of one document of its events."""

    def __init__(self, text: str, first_line: int, repeats: list[TextNode], characters: Mapping[int, str]) -> None:
        self._characters = characters
        self.root: TextNode | None = None
        self._text = text
        self._first_line = first_line
        self._repeats = repeats
        self._open: list[tuple[TextNode, list[TextNode]]] = []
        self._anchors: dict[str, TextNode] = {}

    def begin(self, event: Any) -> None:  # noqa: ANN401  # PyYAML's classes are untyped
        """Takes the event of a scalar or an alias, or the start event of a collection."""
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
        """Takes the end event of a collection."""
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


def is_merge(key: TextNode) -> bool:
    """Whether a key stands for the keys of other maps."""
    return key.content == "<<" and (key.is_plain or key.tag == f"{TAG}merge")
