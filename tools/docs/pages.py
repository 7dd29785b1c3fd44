"""Reads the documentation for tests: every page, its code blocks, its links."""

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
README = PROJECT / "README.md"
PAGES = tuple(sorted(DOCS.rglob("*.md")))
AT_THE_TOP = (
    README,
    *(
        PROJECT / name
        for name in ("CONTRIBUTING.md", "MAINTAINERS.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
    ),
)
ALL = (*AT_THE_TOP, PROJECT / "deploy" / "README.md", *PAGES)

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def name_of(path: Path) -> str:
    """Returns the path within the checkout."""
    return str(path.relative_to(PROJECT))


def page(name: str) -> str:
    """Returns the text of a page in docs."""
    return (DOCS / name).read_text()


def blocks(text: str, language: str) -> Iterator[str]:
    """Yields the content of each code block in that language."""
    for found in _FENCE.finditer(text):
        if found["language"] == language:
            yield found["code"]


def without_blocks(text: str) -> str:
    """Returns the text without its code blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> Iterator[str]:
    """Yields the targets of links and pictures outside code blocks."""
    for found in _LINK.finditer(without_blocks(text)):
        yield found["target"]


def anchors(text: str) -> set[str]:
    """Returns the anchors of the headings, by the rule that code hosts and MkDocs share."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE)}


def anchor(heading: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")
