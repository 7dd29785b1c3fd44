"""Finds identifiers with unwanted words, and classes that share a name: `python -m tests.lint.identifiers`.

The settings are in pyproject.toml: [tool.words] has patterns and what to write instead, [tool.identifiers] the rest.
Names of test functions are sentences and may contain any word. Prints `file:line: name: what to do` for each finding;
exits 1 if there is one.
"""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeGuard

import msgspec

# The fields of syntax tree nodes that hold identifiers, when they are strings.
_FIELDS = ("id", "attr", "arg", "name", "asname", "rest", "kwd_attrs", "names")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table [tool.identifiers].

    `folders` are searched. Within each folder of `one_class_a_name`, classes share no name except `shared_names`.
    `pending` are files that still have unwanted words. An entry of the last two lists that excuses nothing is a
    finding, so that the lists only get shorter.
    """

    folders: list[str]
    one_class_a_name: list[str] = []
    shared_names: list[str] = []
    pending: list[str] = []


class Finding(NamedTuple):
    """One problem to fix."""

    path: str
    line: int
    name: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.remedy}"


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields each name that is defined or used, with its line; of imports only the names that they bind.

    Fields of log events are left out, since operators read them.
    """
    logged = {keyword for node in ast.walk(tree) if _is_logging(node) for keyword in node.keywords}
    for node in ast.walk(tree):
        if node in logged:
            continue
        line = getattr(node, "end_lineno" if isinstance(node, ast.Attribute) else "lineno", 0)
        for field in _FIELDS:
            held = getattr(node, field, None)
            for name in held if isinstance(held, list) else [held]:
                if isinstance(name, str):
                    yield line, name.rpartition(".")[2]


def _is_logging(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether this is a call such as `log.info(...)`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")


def unwanted_words(path: str, tree: ast.AST, words: Mapping[str, str]) -> list[Finding]:
    """Returns findings for the identifiers of a file, and for its own name, that a pattern of `words` matches."""
    names = {(line, name) for line, name in identifiers(tree) if not name.startswith("test_")} | {(1, Path(path).stem)}
    return [
        Finding(path, line, name, f"write {instead}")
        for line, name in sorted(names)
        for pattern, instead in words.items()
        if fnmatchcase(name.lstrip("_"), pattern)
    ]


def shared_class_names(trees: Mapping[str, ast.AST]) -> list[Finding]:
    """Returns a finding for each class that has the name of an earlier one, public or private."""
    classes = defaultdict[str, list[tuple[str, int]]](list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].append((path, node.lineno))
    return [
        Finding(path, line, name, f"another class of this name is at {first[0]}:{first[1]}")
        for name, (first, *others) in classes.items()
        for path, line in others
    ]


def check(sources: Mapping[str, str], settings: Settings, words: Mapping[str, str]) -> list[Finding]:
    """Returns the findings in `sources` (texts by path) that are not excused, and the settings that excuse nothing."""
    trees = {path: ast.parse(text, filename=path) for path, text in sources.items()}
    unwanted = [finding for path, tree in trees.items() for finding in unwanted_words(path, tree, words)]
    shared = [
        finding
        for package in settings.one_class_a_name
        for finding in shared_class_names({path: trees[path] for path in trees if Path(path).is_relative_to(package)})
    ]
    vain = [
        *set(settings.pending).difference(finding.path for finding in unwanted),
        *set(settings.shared_names).difference(finding.name for finding in shared),
    ]
    return [
        *(finding for finding in unwanted if finding.path not in settings.pending),
        *(finding for finding in shared if finding.name not in settings.shared_names),
        *(
            Finding("pyproject.toml", 1, excuse, "take it off [tool.identifiers]: it excuses nothing")
            for excuse in sorted(vain)
        ),
    ]


def findings(root: Path) -> list[Finding]:
    """Returns the findings in the checkout at `root`, by its pyproject.toml."""
    tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    settings = msgspec.convert(tools["identifiers"], Settings)
    paths = sorted(path for folder in settings.folders for path in (root / folder).rglob("*.py"))
    sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return check(sources, settings, msgspec.convert(tools["words"], dict[str, str]))


def main() -> int:
    """Prints the findings in this file's checkout; returns the exit code."""
    found = findings(Path(__file__).parents[2])
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
