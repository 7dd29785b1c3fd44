"""`python -m benchmarks.siege` besieges the service, prints one table, and writes it as JSON.

Exit status 1 if an answer was wrong or lost, or if the siege could not be laid; no speed decides about it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.report import print_report, read_report, write_report
from benchmarks.siege.attacks import ATTACKS, chosen
from benchmarks.siege.network import NetworkMissing, isolating
from benchmarks.siege.siege import FAULTS, QUIET_SECONDS, SECONDS, TOGETHER_SECONDS, Lengths, run_siege
from testbed.child import ServerFailed

WIDTH = 230  # columns, when the output is a file


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(ATTACKS)}; without any: all.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Of each attack alone; 0: not.")] = SECONDS,
    quiet_seconds: Annotated[float, typer.Option(min=1, help="Before each attack.")] = QUIET_SECONDS,
    together_seconds: Annotated[float, typer.Option(min=0, help="Of all attacks at once; 0: not.")] = TOGETHER_SECONDS,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Let nothing else take the service's core: for a busy machine.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path(".bench"),
    inside: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Besiege the service in a network namespace of its own."""
    lengths = Lengths(seconds=seconds, quiet_seconds=quiet_seconds, together_seconds=together_seconds)
    try:
        attacks = chosen(names or [])
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None
    if inside:
        _besiege(attacks, lengths, out, real_time=real_time)
        return
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        options = [f"--{name.replace('_', '-')}={getattr(lengths, name)}" for name in lengths.__struct_fields__]
        command = [sys.executable, "-m", "benchmarks.siege", *attacks, *options, f"--out={folder}", "--inside"]
        command += ["--real-time"] * real_time
        if _run_isolated(command):
            raise typer.Exit(1)
        report = read_report(Path(folder) / "siege.json")
    print_report(Console(width=None if sys.stdout.isatty() else WIDTH), report)
    write_report(out, report)
    if any(claim.what == FAULTS and not claim.holds for claim in report.claims):
        raise typer.Exit(1)


def _run_isolated(command: list[str]) -> int:
    """Runs the command in namespaces of its own and returns its exit status."""
    try:
        return subprocess.run(isolating(command), check=False).returncode
    except NetworkMissing as exc:
        print(f"siege: {exc}", file=sys.stderr)
        return 1


def _besiege(attacks: list[str], lengths: Lengths, out: Path, *, real_time: bool) -> None:
    try:
        write_report(out, run_siege(attacks, lengths, is_real_time=real_time))
    except (ServerFailed, NetworkMissing) as exc:
        print(f"siege: {exc}", file=sys.stderr)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
