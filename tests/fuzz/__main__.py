"""Fuzzes every parser of bytes from outside, one after the other: `python -m tests.fuzz [--seconds N] [TARGET…]`.

Prints a row for each target: inputs run, inputs an hour, crashes, the processor time of the slowest input, and the
resident memory at the beginning and the end. An input that crashes is kept in `--keep` and printed. Exits 1 if an input
crashed or took longer than a second, 2 if this interpreter has no engine.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.table import TARGETS

_ROW = "| {:18} | {:>9} | {:>12} | {:>7} | {:>11} | {:>9} | {:>11} |"
_GRACE_SECONDS = 120.0  # to import, to read the corpus, and to end the last input
_SHOWN_LINES = 40


class Outcome(NamedTuple):
    """What one target's process did. `findings` are inputs that crashed or were too slow."""

    name: str
    findings: Sequence[Path]
    executions: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    first_megabytes: float = 0.0
    last_megabytes: float = 0.0

    def row(self) -> str:
        hourly = self.executions / self.seconds * 3600 if self.seconds else 0.0
        slowest, growth = self.slowest_seconds * 1000, self.last_megabytes - self.first_megabytes
        words = f"{self.executions:,}", f"{hourly:,.0f}", len(self.findings), f"{slowest:,.1f}"
        return _ROW.format(self.name, *words, f"{self.first_megabytes:.0f}", f"{growth:+.0f}")


def fuzz(name: str, seconds: int, keep: Path, seed: int) -> Outcome:
    """Fuzzes one target in a process of its own."""
    folder = keep / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(seconds), str(folder), str(seed)]
    with (folder / "log").open("wb") as log_file:
        try:
            ended = subprocess.run(
                command, stdout=log_file, stderr=log_file, timeout=seconds + _GRACE_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            ended = -1
    findings = sorted(path for kind in ("crash", "timeout", "oom", "leak") for path in folder.glob(f"{kind}-*"))
    if ended and not findings:
        findings = [folder / "log"]
    file = folder / "figures.json"
    return Outcome(name, findings, **(json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}))


def report(outcome: Outcome, folder: Path) -> None:
    """Prints the end of a failed target's log, and its inputs."""
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    start = next((index for index, line in enumerate(lines) if "Uncaught Python exception" in line), len(lines))
    print("\n".join(lines[start : start + _SHOWN_LINES] or lines[-_SHOWN_LINES:]))
    for path in outcome.findings:
        print(f"{outcome.name}: {path}: {path.read_bytes()[:300]!r}")


def main() -> int:
    """Fuzzes the targets of the command line, all by default; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0 takes a new one each time")
    parser.add_argument("--keep", type=Path, help="a folder for inputs and logs, instead of a temporary one")
    arguments = parser.parse_args()
    unknown = set(arguments.targets).difference(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print(
            "fuzzing needs atheris, which has wheels for CPython 3.11 to 3.13 on Linux of x86-64; `make test` replays "
            "the corpus on any other",
            file=sys.stderr,
        )
        return 2
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="fuzz-"))
    headings = ("target", "inputs", "inputs/hour", "crashes", "slowest, ms", "RSS, MB", "growth, MB")
    print(_ROW.format(*headings))
    print(_ROW.format("---", *["---:"] * (len(headings) - 1)), flush=True)
    outcomes = []
    for name in arguments.targets or TARGETS:
        outcomes.append(fuzz(name, arguments.seconds, keep, arguments.seed))
        print(outcomes[-1].row(), flush=True)
    failed = [outcome for outcome in outcomes if outcome.findings]
    for outcome in failed:
        report(outcome, keep / outcome.name)
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    print(f"{sum(outcome.executions for outcome in outcomes):,} inputs in {minutes:.0f} minutes; files: {keep}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
