"""A stream of YAML documents, cut into their texts; joined again, these are the stream to the byte.

Each document is read by itself, and only if it may hold a pod template: a chart's CustomResourceDefinitions are most of
its text, and reading YAML with its comments is slow. The syntax of the others is checked by libyaml, which is not.
"""

import re
from collections.abc import Iterator

import msgspec

from extender.errors import ExtenderError

_MARKER = re.compile(r"(?:---|\.\.\.)(?:\s|\Z)")
_PROPERTY = r"(?:[&!]\S+\s+|\#[^\n]*\n\s*)*"  # an anchor, a tag or a comment before a value
_OF_INTEREST = re.compile(
    rf"""["']?\bkind["']?\s*:\s*{_PROPERTY}["']?Namespace\b
    |["']?\bcontainers["']?\s*:\s*{_PROPERTY}[-*[]""",
    re.VERBOSE,
)


class ManifestError(ExtenderError):
    """A manifest that cannot be read or edited; the message names the line and what is wrong."""


class DocumentText(msgspec.Struct, frozen=True):
    """The text of one document: the line that begins it, empty without one, and the rest.

    `line` is the number of the first line of `body` in the stream, from 1.
    """

    marker: str
    body: str
    line: int

    @property
    def may_have_templates(self) -> bool:
        """Whether the text has a list of containers, or is a Namespace."""
        return _OF_INTEREST.search(self.body) is not None


def split_documents(text: str) -> Iterator[DocumentText]:
    """The documents of a stream. A line that begins with `---` or `...` ends a document wherever it is (YAML 9.1.2)."""
    marker, first = "", 1
    body: list[str] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if _MARKER.match(line):
            yield DocumentText(marker, "".join(body), first)
            marker, body, first = line, [], number + 1
        else:
            body.append(line)
    yield DocumentText(marker, "".join(body), first)
