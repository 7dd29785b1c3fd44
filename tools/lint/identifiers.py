"""Finds classes of the package that share a name: `python -m tools.lint.identifiers`.

Prints `file:line: name: what to do` for each finding; exits 1 if there is one.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {"Reading", "Row"}
"""Private classes that are alike on purpose. A name that is no longer shared is a finding too."""


def findings() -> Iterator[str]:
    """Yields a sentence for each class that has the name of an earlier one, public or private."""
    first: dict[str, str] = {}
    shared = set[str]()
    for path in sorted((ROOT / "extender").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                name, place = node.name.lstrip("_"), f"{path.relative_to(ROOT)}:{node.lineno}"
                if name in first:
                    shared.add(name)
                    if name not in SHARED:
                        yield f"{place}: {name}: another class of this name is at {first[name]}"
                first.setdefault(name, place)
    for name in sorted(SHARED - shared):
        yield f"{Path(__file__).relative_to(ROOT)}:1: {name}: take it off SHARED: one class has the name"


def main() -> int:
    """Prints the findings in this file's checkout; returns the exit code."""
    found = list(findings())
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
