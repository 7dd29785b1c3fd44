"""The architecture page walks through code that is there."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.docs.pages import PROJECT, page

JOURNEYS = ("The journey of a filter request", "The journey of a review", "The journey of an image")
_FILE = re.compile(r"`(extender/[\w/]+\.py)`")
_NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def section(title: str) -> str:
    """The text under the heading."""
    return page("architecture.md").partition(f"## {title}\n")[2].partition("\n## ")[0]


def sentences(title: str) -> Iterator[tuple[str, set[str]]]:
    """Each paragraph or item that names files, with the files and the other names in it."""
    for text in re.split(r"\n\n|\n(?=\d+\. )", section(title)):
        if _FILE.search(text):
            yield text, set(_FILE.findall(text))


def definitions(file: str) -> set[str]:
    """The classes and functions of a file, and the members of its classes as `Class.member`."""
    found = set()
    for node in ast.parse((PROJECT / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                node.name,
                *(f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)),
            }
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_journey_is_short(title: str) -> None:
    """It passes through eight files at most."""
    assert 0 < len(set(_FILE.findall(section(title)))) <= 8


@pytest.mark.parametrize("title", JOURNEYS)
def test_what_a_journey_names_exists(title: str) -> None:
    """Each class and function is defined in a file that is named beside it, or earlier on the way."""
    known: set[str] = set()
    for text, files in sentences(title):
        for file in sorted(files):
            assert (PROJECT / file).exists(), file
            known |= definitions(file)
        named = {name for name in _NAME.findall(text) if not name.endswith(".py") and not name.islower()}
        named |= {name for name in _NAME.findall(text) if "_" in name and "." not in name}
        assert named <= known, named - known


def test_the_rooms_are_those_of_the_package() -> None:
    """Each folder of the package has its row."""
    rooms = {path.name for path in (PROJECT / "extender").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"^\| `(\w+)/` \|", section("Rooms"), re.MULTILINE)) == rooms
