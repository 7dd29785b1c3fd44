"""What the documentation tells a reader to type works, and its site builds."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.docs.pages import DOCS, PROJECT, README, blocks

SECONDS = 120
LINES = dict.fromkeys(
    line
    for path in (README, DOCS / "quickstart.md")
    for block in blocks(path.read_text(), "console")
    for line in block.splitlines()
    if line.strip()
)


class Target(msgspec.Struct, frozen=True):
    """What a make target's recipe has to contain, and the arguments of Python that stand for it here."""

    recipe: str
    arguments: Sequence[str]


# `make` itself would set up an environment, and `make test` would run this test: so the recipe's command runs alone,
# the tests only so far that pytest finds them.
TARGETS = {
    "demo": Target("$(BIN)/multiarch-extender demo", ["-m", "extender", "demo"]),
    "test": Target("$(BIN)/python -m pytest -n auto", ["-m", "pytest", "--collect-only", "--quiet", "tests/unit/docs"]),
}


def arguments_for(line: str) -> list[str]:
    """The command that a line of a console block stands for. Fails for one that nobody has said how to run."""
    program, *arguments = line.partition("#")[0].split()
    if program == ".venv/bin/multiarch-extender":
        return [sys.executable, "-m", "extender", *arguments]
    if program == "make" and len(arguments) == 1 and arguments[0] in TARGETS:
        target = TARGETS[arguments[0]]
        assert target.recipe in recipe_of(arguments[0])
        return [sys.executable, *target.arguments]
    pytest.fail(f"no test knows how to run {line!r}; a block that needs more than the checkout is `sh`, not `console`")


def recipe_of(target: str) -> str:
    """The lines under a target in the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert found, f"the Makefile has no target {target}"
    return found[1]


@pytest.mark.parametrize("line", LINES)
def test_a_line_to_type_works(line: str) -> None:
    """Each line of a console block ends with exit code 0, run in the checkout."""
    done = subprocess.run(
        arguments_for(line), cwd=PROJECT, check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_a_line_that_nobody_can_run_fails() -> None:
    """So that a new block is either run or marked as one that is not."""
    with pytest.raises(pytest.fail.Exception, match="no test knows how to run 'kubectl get pods'"):
        arguments_for("kubectl get pods")


def test_there_are_lines_to_type() -> None:
    """The first two commands of the README are among them."""
    lines = [block.splitlines() for block in blocks(README.read_text(), "console")]
    assert lines == [["make demo", "make test"]]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """The site as `make docs` builds it, of the pages in the folder."""
    recipe = recipe_of("docs").strip().removeprefix("@$(BIN)/").split()
    return subprocess.run(
        [sys.executable, "-m", *recipe], cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the pages and the site's configuration."""
    shutil.copy(PROJECT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_site_builds_and_fetches_nothing(checkout: Path) -> None:
    """No page of it loads a script, style, font or picture from another host."""
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list((checkout / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        assert "```" not in text
        assert not re.search(r"<p><code>(?:sh|console|yaml|toml)\n", text), "MkDocs knows no fence within a list"
        assert not re.findall(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["'](?:https?:)?//""", text), page.name
    assert not list((checkout / "site").rglob("*.py"))


@pytest.mark.parametrize(
    "wrong",
    ["[gone](gone.md)", "[gone](settings.md#gone)", "[gone](#gone)", "![gone](pictures/gone.svg)"],
    ids=["page", "anchor", "own-anchor", "picture"],
)
def test_a_link_that_leads_nowhere_fails_the_build(checkout: Path, wrong: str) -> None:
    """Strict: pages, anchors and pictures."""
    with (checkout / "docs" / "index.md").open("a") as index:
        index.write(f"\n{wrong}\n")
    assert build(checkout).returncode != 0


def test_a_page_that_the_navigation_lacks_fails_the_build(checkout: Path) -> None:
    """Nobody would find it."""
    (checkout / "docs" / "lost.md").write_text("# Lost\n")
    assert build(checkout).returncode != 0
