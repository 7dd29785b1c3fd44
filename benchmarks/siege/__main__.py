"""`python -m benchmarks.siege` besieges the service, prints one table, and writes it as JSON.

Exit status 1 if an answer was wrong, if one was lost, an image was unknown or a process ended in an attack alone, or if
the siege could not be laid; no speed decides about it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.report import print_report, read_report, write_report
from benchmarks.siege.container import control_groups
from benchmarks.siege.network import NetworkMissing, isolating
from benchmarks.siege.siege import NAMES, SECONDS, planned, run_siege
from testbed.child import ServerFailed

WIDTH = 250  # columns, when the output is a file


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(NAMES)}; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of each attack alone; others last in proportion.")] = SECONDS,
    skip_together: Annotated[bool, typer.Option("--skip-together", help="Make each attack alone only.")] = False,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path(".bench"),
    inside: Annotated[str | None, typer.Option(hidden=True, help="Control groups, separated by colons.")] = None,
) -> None:
    """Besiege the service in a network namespace of its own."""
    only = only or []
    if unknown := set(only) - set(NAMES):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    if inside is not None:
        plans = planned(only, seconds, skips_together=skip_together)
        write_report(out, run_siege(plans, [Path(group) for group in inside.split(":") if group]))
        return
    with tempfile.TemporaryDirectory(prefix="siege-") as folder, control_groups() as groups:
        command = [sys.executable, "-m", "benchmarks.siege", f"--seconds={seconds}", f"--out={folder}"]
        command += [*(f"--only={name}" for name in only), *["--skip-together"] * skip_together]
        command.append(f"--inside={':'.join(map(str, groups))}")
        if subprocess.run(isolating(command), check=False, start_new_session=True).returncode:
            raise typer.Exit(1)
        report = read_report(Path(folder) / "siege.json")
    print_report(Console(width=None if sys.stdout.isatty() else WIDTH), report)
    write_report(out, report)
    if not all(claim.holds for claim in report.claims):
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        typer.run(main)
    except (ServerFailed, NetworkMissing) as exc:
        sys.exit(f"siege: {exc}")
