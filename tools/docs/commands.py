"""The commands that pages have a reader type: each block of them, under which heading it is, and whether it can run.

A block that no test can run says why in a comment of the page before it, such as `<!-- not run: needs docker -->`.
"""

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from tools.docs.pages import ALL, PROJECT, anchor

_PART = re.compile(
    r"^#+ (?P<heading>[^\n]*)$|(?:^<!-- not run: (?P<why>[^>]+?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_LANGUAGES = ("sh", "console")


class Block(NamedTuple):
    """A block of commands: the page and the anchor of the heading above it. `why_not` says why no test runs it."""

    page: str
    anchor: str
    commands: tuple[str, ...]
    why_not: str

    @property
    def place(self) -> str:
        """Where it is, as a link says it."""
        return f"{self.page}#{self.anchor}"


def blocks_of_commands() -> list[Block]:
    """Returns the blocks of commands of all pages."""
    return [block for path in ALL for block in blocks_in(str(path.relative_to(PROJECT)), path.read_text())]


def blocks_in(page: str, text: str) -> Iterator[Block]:
    """Yields the blocks of commands of a page's text."""
    heading = ""
    for found in _PART.finditer(text):
        if found["heading"] is not None:
            heading = anchor(found["heading"])
        elif found["language"] in _LANGUAGES:
            yield Block(page, heading, tuple(commands_of(found["code"])), found["why"] or "")


def commands_of(code: str) -> list[str]:
    """Returns the commands of a block: a line each, but for lines that a backslash, a quote or a loop goes on with."""
    commands: list[str] = []
    unfinished = ""
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        unfinished += line
        if _is_whole(unfinished):
            commands.append(unfinished)
            unfinished = ""
        else:
            unfinished += "\n"
    assert not unfinished, f"this command does not end:\n{unfinished}"
    return [command for command in commands if command]


def _is_whole(command: str) -> bool:
    """Whether bash would run it, rather than ask for another line."""
    return not subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False).returncode
