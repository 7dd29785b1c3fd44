"""The terminal of every command: no other file of the command line prints, or imports rich.

A text is made of spans, each with its style, and none is markup. What a tenant, a registry or a manifest wrote is shown
as text: characters that are not shown as themselves are escaped.
"""

import contextlib
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from extender.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

Span: TypeAlias = str | tuple[str, str]
"""A text, or a text and its style, such as `bold`."""


def print_line(*spans: Span) -> None:
    """Prints one line on standard output, whole: a narrow terminal wraps it."""
    from rich.text import Text

    line = Text()
    for text, style in map(_styled, spans):
        line.append(printable(text), style)
    _console().print(line, soft_wrap=True)


def print_rows(rows: Iterable[Sequence[Span]], indent: str = "  ") -> None:
    """Prints rows whose cells stand below each other, as `aligned` has them."""
    for parts in aligned(rows):
        print_line(indent, *parts)


def aligned(rows: Iterable[Sequence[Span]]) -> Iterator[list[tuple[str, str]]]:
    """The parts of rows whose cells are as wide as the widest that another follows; nothing is cut."""
    from rich.cells import cell_len

    table = [[(printable(text), style) for text, style in map(_styled, row)] for row in rows]
    columns = zip_longest(*(row[:-1] for row in table), fillvalue=("", ""))
    widths = [max(cell_len(text) for text, _ in column) for column in columns]
    for row in table:
        parts = []
        for (text, style), width in zip(row[:-1], widths, strict=False):
            parts += [(text, style), (" " * (width - cell_len(text) + 2), "")]
        yield [*parts, row[-1]]


def print_problem(text: str) -> None:
    """Prints one line on standard error, if it takes one."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr)


def print_document(text: str) -> None:
    """Prints text in lines, such as JSON or a page, on standard output."""
    sys.stdout.write("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")))


def print_structs(found: Sequence[object], output: str) -> None:
    """Prints structs, or what they are made of, as `json` or as `yaml`."""
    import msgspec
    import yaml

    plain = msgspec.to_builtins(found)
    if output == "json":
        print_document(json.dumps(plain, indent=2) + "\n")
    else:
        print_document(yaml.safe_dump(plain, sort_keys=False, width=1000))


def print_copy(text: str) -> None:
    """Prints what is given back, as it is for a file or a program, and as `print_document` does on a terminal."""
    if sys.stdout.isatty():
        print_document(text)
    else:
        sys.stdout.write(text)


class ProgressBar:
    """A bar on standard error, if that is a terminal; it goes when it ends."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress = progress
        self._task = task

    def begin(self, steps: int) -> None:
        """Begins anew, with that many steps."""
        self._progress.reset(self._task, total=steps)

    def step(self, what: str) -> None:
        """Shows that one more step is done, and of what."""
        self._progress.update(self._task, advance=1, description=printable(what))


@contextlib.contextmanager
def progress_bar(steps: int | None = None) -> Iterator[ProgressBar]:
    """Shows a bar while images are looked up."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("Looking up"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield ProgressBar(progress, progress.add_task("", total=steps))


def _styled(span: Span) -> tuple[str, str]:
    return (span, "") if isinstance(span, str) else span


@functools.cache
def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
