"""A stream of manifests, cut into its documents as kubectl does; their texts together are the stream to the byte.

kubectl cuts at lines that begin with `---`, reads of each part the first document alone, and takes a stream that begins
with `{` for JSON objects, one behind the other, if they are such.
https://github.com/kubernetes/apimachinery/blob/v0.36.3/pkg/util/yaml/decoder.go
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from extender.bounded_yaml import InvalidYaml
from extender.errors import ExtenderError
from extender.kubernetes.documents import Json
from extender.yaml_nodes import BYTE_ORDER_MARK, TextNode, compose
from extender.yaml_values import value_of

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LEAST = 4  # bytes behind a JSON object that kubectl takes for YAML
_SPACE = re.compile(r"[ \t\r\n\v\f\x85\xa0]*")


class ManifestError(ExtenderError):
    """A manifest that cannot be read or edited; the message names the line and what is wrong."""


class StreamDocument(msgspec.Struct, frozen=True):
    """A document of a stream.

    `start` is where `text` begins in the stream, on the line `line`. That and `number` are counted from 1, and empty
    documents count. `repeats` has a line for each key that a map has twice.
    """

    text: str
    start: int
    line: int
    number: int
    value: Json
    repeats: tuple[str, ...] = ()

    def check_object(self) -> None:
        """Raises ManifestError for an object that kubectl refuses, since a byte-order mark is a part of a key."""
        if isinstance(self.value, dict) and any(key.startswith(BYTE_ORDER_MARK) for key in self.value):
            raise ManifestError(f"line {self.line}: a byte-order mark stands before a key, which kubectl does not know")


def node_of(text: str, line: int = 1) -> TextNode | None:
    """The parts of a document's text. Raises ManifestError."""
    try:
        return compose(text, line)
    except InvalidYaml as exc:
        raise ManifestError(str(exc)) from exc


def decode_stream(data: bytes) -> tuple[str, str]:
    """The text, and how it is encoded: in UTF-16 if a byte-order mark says so. Raises ManifestError."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ManifestError(f"line {line}: it is no text in {encoding.upper()}") from exc


def read_stream(text: str) -> Iterator[StreamDocument]:
    """The documents that kubectl reads, without empty ones. Raises ManifestError at what it does not read."""
    at, count = 0, 0
    if text[_SPACE.match(text).end() :][:1] == "{":  # type: ignore[union-attr]  # it matches nothing too
        for document in _objects(text):
            if document.value is not None:
                yield document
            count, at = count + 1, document.start + len(document.text)
        rest = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # as above
        if rest == len(text):
            return
        if count > 1 or (count and len(text[at:].encode()) < _LEAST):
            raise ManifestError(f"line {text.count(chr(10), 0, rest) + 1}: it is no JSON, as what is before it")
        if count:
            at = min(rest, text.find("\n", at) + 1 or rest)
    for number, (start, part, line) in enumerate(_parts(text, at), count + 1):
        try:
            repeats = list[TextNode]()
            value = value_of(compose(part, line, repeats), line)
        except InvalidYaml as exc:
            raise ManifestError(str(exc)) from exc
        if value is not None:
            first = line + part.startswith("---")
            yield StreamDocument(part, start, first, number, value, tuple(_described(each, line) for each in repeats))


def _described(key: TextNode, line: int) -> str:
    return f"line {line + key.line}: {_repeat(key.content)}"


def _repeat(key: object) -> str:
    return f"the key {key!r:.100} is there a second time; the last counts"


def _no_number(word: str) -> float:
    raise ValueError(word)


def _objects(text: str) -> Iterator[StreamDocument]:
    repeats = list[str]()

    def map_of(pairs: list[tuple[str, Json]]) -> Json:
        made = dict(pairs)
        if len(made) < len(pairs):
            repeats.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return made

    decoder = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=map_of)
    at = number = 0
    while (start := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing too
        repeats.clear()
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        number += 1
        line = text.count("\n", 0, start) + 1
        repeated = tuple(f"line {line}: below, {_repeat(name)}" for name in repeats)
        yield StreamDocument(text[start:at], start, line, number, value, repeated)


def _parts(text: str, at: int) -> Iterator[tuple[int, str, int]]:
    """Where each part begins, its text, and the number of its first line. Raises ManifestError."""
    start, line = at, text.count("\n", 0, at) + 1
    first = line
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        if text.startswith("---", at):
            behind = text[at + 3 : end].strip()
            if behind and behind[0] != "#":
                raise ManifestError(f"line {line}: invalid Yaml document separator: {behind:.100}")
            if start < at:  # else it begins the part
                yield start, text[start:at], first
                start, first = end, line + 1
        at, line = end, line + 1
    if start < len(text):
        yield start, text[start:], first
