"""The report of a benchmark: tables and claims with their bounds; printed, and as JSON for comparing commits."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as RichTable

PACKAGES = ("aiohttp", "msgspec", "uvloop", "async-lru")
Cell = str | int | float | None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions that were measured; `others` are such as Go's or kube-scheduler's."""

    processor: str
    cores: int
    kernel: str
    python: str
    commit: str
    packages: Mapping[str, str]
    others: Mapping[str, str] = {}


class Table(msgspec.Struct, frozen=True):
    """Figures. The first cell of a row is its name, a column's name states its unit, and None is a missing figure."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its bounds; without a bound it is only printed."""

    what: str
    value: float
    unit: str = "×"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is within all bounds."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def mark(self) -> str:
        """The bounds in words; empty without any."""
        lower = [] if self.at_least is None else [f"≥ {self.at_least:g}"]
        return " and ".join(lower + ([] if self.at_most is None else [f"≤ {self.at_most:g}"]))


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark's answer to its one question. `notes` state the number of samples and the conditions of the run."""

    name: str
    question: str
    tables: Sequence[Table]
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    machine: Machine | None = None


def this_machine(**others: str) -> Machine:
    """Returns the machine, and the versions of what is measured here."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 0,
        kernel=platform.release(),
        python=platform.python_version(),
        commit=_commit(),
        packages={name: version(name) for name in PACKAGES},
        others=others,
    )


def print_machine(console: Console, machine: Machine) -> None:
    """Prints the machine and its versions on two lines."""
    versions = {"Python": machine.python, **machine.packages, **machine.others}
    console.print(f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}, commit {machine.commit}")
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))


def print_report(console: Console, report: Report) -> None:
    """Prints the question, the tables, the claims with their bounds, and the notes."""
    console.print(f"\n[bold]{report.name}[/]: {report.question}")
    if report.machine:
        print_machine(console, report.machine)
    for table in report.tables:
        console.print(_drawn(table.title, table.columns, table.rows))
    if report.claims:
        rows: list[list[Cell]] = [
            [claim.what, claim.value, claim.unit, claim.mark, _judged(claim)] for claim in report.claims
        ]
        console.print(_drawn("", ["claim", "figure", "unit", "mark", ""], rows))
    for note in report.notes:
        console.print(f"  {note}", style="dim")


def write_report(folder: Path, report: Report) -> Path:
    """Writes `report.name`.json into `folder`, which is created if missing, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return path


def read_report(path: Path) -> Report:
    """Reads a report that `write_report` wrote. Raises msgspec.DecodeError, OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def compared(before: Report, after: Report) -> Table:
    """Returns all figures that both reports have, with the ratio of the second to the first."""
    old = dict(_figures(before))
    rows: list[list[Cell]] = [
        [name, old[name], value, value / old[name] if old[name] else None]
        for name, value in _figures(after)
        if name in old
    ]
    commits = [report.machine.commit if report.machine else "?" for report in (before, after)]
    return Table(f"{after.name}, compared", ["figure", *commits, "after / before"], rows)


def _figures(report: Report) -> Iterator[tuple[str, float]]:
    for table in report.tables:
        for name, *cells in table.rows:
            for column, cell in zip(table.columns[1:], cells, strict=True):
                if isinstance(cell, int | float):
                    yield f"{table.title}: {name}, {column}", cell
    for claim in report.claims:
        yield claim.what, claim.value


def _drawn(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> RichTable:
    drawn = RichTable(title=title or None, title_justify="left", title_style="italic", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = any(isinstance(row[index], int | float) for row in rows)
        drawn.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        drawn.add_row(*map(_shown, row))
    return drawn


def _shown(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return cell


def _judged(claim: Claim) -> str:
    if not claim.mark:
        return ""
    return "[green]holds[/]" if claim.holds else "[red]missed[/]"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """Returns the checkout's commit, with + if files differ from it; ? outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "?"
