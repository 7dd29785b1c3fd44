"""What the documentation tells a reader to type works."""

import re
import subprocess
import sys

import pytest

from tools.docs.pages import DOCS, PROJECT, README, blocks

SECONDS = 120
LINES = dict.fromkeys(
    line
    for path in (README, DOCS / "quickstart.md")
    for block in blocks(path.read_text(), "console")
    for line in block.splitlines()
    if line.strip()
)


# What the recipes of make targets have to contain: tests/integration/test_command_line.py runs the demonstration, and
# this is a test of those that `make test` runs.
TARGETS = {"demo": "$(BIN)/python -m testbed.demo", "test": "$(BIN)/python -m pytest -n auto"}


def arguments_for(line: str) -> list[str]:
    """The command that a line of a console block stands for. Fails for one that nobody has said how to run."""
    program, *arguments = line.partition("#")[0].split()
    if program == ".venv/bin/multiarch-extender":
        return [sys.executable, "-m", "extender", *arguments]
    pytest.fail(f"no test knows how to run {line!r}; a block that needs more than the checkout is `sh`, not `console`")


def recipe_of(target: str) -> str:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert found, f"the Makefile has no target {target}"
    return found[1]


@pytest.mark.parametrize("line", LINES)
def test_a_line_to_type_works(line: str) -> None:
    """Each line of a console block ends with exit code 0, run in the checkout."""
    program, target, *_ = [*line.split(), ""]
    if program == "make" and target in TARGETS:
        assert TARGETS[target] in recipe_of(target)
        return
    done = subprocess.run(
        arguments_for(line), cwd=PROJECT, check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
