"""Prints what the changelog says of this version: `python -m tools.release.notes`.

Exits 1 if it has no section of that name, so that a release cannot come without its note.
"""

import re
import sys

import extender
from tools.release.pythons import PROJECT


def note_of(version: str, changelog: str) -> str | None:
    """Returns the text under the heading of the version, up to the next of its level; None if there is none."""
    found = re.search(
        rf"^## \[?{re.escape(version)}\]?(?![\w.])[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE
    )
    return found[1].strip() + "\n" if found else None


def main() -> int:
    """Prints the note; returns the exit code."""
    note = note_of(extender.__version__, (PROJECT / "CHANGELOG.md").read_text())
    if note is None:
        print(f"CHANGELOG.md has no section for {extender.__version__}", file=sys.stderr)
        return 1
    print(note, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
