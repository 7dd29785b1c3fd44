"""`python -m benchmarks` runs benchmarks, prints their reports, and writes JSON for comparing commits.

Each benchmark is imported only when it is run.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer
from rich.console import Console

from benchmarks.contenders import Disagreement
from benchmarks.loopback import UnexpectedStatus
from benchmarks.report import Report, compared, print_report, read_report, write_report
from benchmarks.wrk import LoadFailed
from testbed.binaries import BinariesMissing
from testbed.child import ServerFailed
from testbed.debian_package import ProgramMissing
from testbed.processes import ProcessFailed

USUAL = ("latency", "webhook", "images", "audit", "memory")
MODULES = {name: f"benchmarks.{name}" for name in (*USUAL, "soak")} | {"throughput": "benchmarks.cluster.throughput"}
WIDTH = 160  # columns, when the output is a file
FAILURES = (
    *(BinariesMissing, ProgramMissing, ImportError),  # a program or library is missing
    *(ProcessFailed, ServerFailed, LoadFailed, UnexpectedStatus, Disagreement),  # what would be measured does not work
)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(MODULES)}; without any: {', '.join(USUAL)}.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path(".bench"),
    against: Annotated[Path | None, typer.Option(help="Another such folder, to compare with.")] = None,
    fewer: Annotated[int, typer.Option(min=1, help="Only 1/N of the samples: quick, and good for a look only.")] = 1,
) -> None:
    """Run benchmarks; exit status 1 if one of them could not be run."""
    chosen = names or list(USUAL)
    if unknown := [name for name in chosen if name not in MODULES]:
        raise typer.BadParameter(f"{', '.join(unknown)}: there are {', '.join(MODULES)}")
    ended = [_run(name, out, against, fewer) for name in chosen]
    if not all(ended):
        raise typer.Exit(1)


def _run(name: str, out: Path, against: Path | None, fewer: int) -> bool:
    """Runs the benchmark and returns whether it could be run; if not, prints the reason on one line."""
    print(f"{name} …", file=sys.stderr, flush=True)
    try:
        run = cast("Callable[..., Report]", importlib.import_module(MODULES[name]).run)
        report = run(fewer=fewer)
    except FAILURES as exc:
        print(f"{name}: {str(exc) or type(exc).__name__}", file=sys.stderr)
        return False
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    print_report(console, report)
    if against:
        _compare(console, against / f"{report.name}.json", report)
    write_report(out, report)
    return True


def _compare(console: Console, path: Path, report: Report) -> None:
    """Prints the report's figures beside those in the file, if the file can be read."""
    try:
        before = read_report(path)
    except (OSError, msgspec.DecodeError) as exc:
        print(f"{report.name}: nothing to compare with: {exc}", file=sys.stderr)
        return
    table = compared(before, report)
    print_report(console, Report(name=report.name, question=f"What has changed since {path}?", tables=[table]))


if __name__ == "__main__":
    typer.run(main)
