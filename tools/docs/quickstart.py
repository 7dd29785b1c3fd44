"""What the quickstart's section on helm has a reader type, and what it says is printed.

`tools/docs/quickstart_walk.py` types it. Nothing here runs a program.
"""

import re
from typing import NamedTuple

from tools.docs.commands import commands_of
from tools.docs.pages import page

SECTION = "Install it with Helm"

_FENCE = re.compile(r"^```(?P<language>sh|text)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_CHANGING = (
    (r"127\.0\.0\.1:\d+", "REGISTRY"),
    (r"\bv1\.\d+\.\d+\b", "VERSION"),
    (r"\b(multiarch-extender-webhook)-[0-9a-f]{6,10}-[a-z0-9]{5}\b", r"\1-POD"),
    (r"\b\d+ ms\b", "TIME"),
    (r"(?<= )(?:\d+[hms])+(?= |$)", "AGE"),
    (r" +", " "),
)
"""What differs from run to run, and what stands for it."""

_PLACED = (r"\b(amd64|arm64)-(?:[123]|tainted) <none> <none>", r"\1-N <none> <none>")
"""Which node of an architecture a pod is placed on, in the columns of `kubectl get pods -o wide`."""


class Step(NamedTuple):
    """A command of the page, and what the page says that it prints; None where the page does not say."""

    command: str
    shown: str | None = None


def steps_of(text: str) -> list[Step]:
    """Returns the commands of a page's text; a block of text shows what the last command of the block above prints."""
    steps: list[Step] = []
    for found in _FENCE.finditer(text):
        if found["language"] == "text":
            steps[-1] = steps[-1]._replace(shown=found["code"])
        else:
            steps += [Step(command) for command in commands_of(found["code"])]
    return steps


def section() -> str:
    """Returns the page's section that is walked through."""
    found = re.search(rf"^## {SECTION}\n(.*?)^## ", page("quickstart.md"), re.DOTALL | re.MULTILINE)
    assert found, f"docs/quickstart.md has no section {SECTION}"
    return found[1]


def says_the_same(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed, but for what differs from run to run."""
    return _settled(shown) == _settled(printed)


def _settled(text: str) -> list[str]:
    lines = text.strip().splitlines()
    for pattern, stands_for in (*_CHANGING, _PLACED):
        lines = [re.sub(pattern, stands_for, line).strip() for line in lines]
    return lines
