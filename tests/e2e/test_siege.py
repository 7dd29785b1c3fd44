"""The siege can be laid, and finds what it is told to look for.

It is here because it makes namespaces of network and mounts, as the control plane's tests need a machine of their own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import read_report
from benchmarks.siege.outcome import COLUMNS
from benchmarks.siege.siege import FAULTS


@pytest.mark.slow
def test_a_short_siege_measures_every_phase(tmp_path: Path) -> None:
    """Two attacks alone, then together; in quiet times every answer is right."""
    lengths = ["--seconds=2", "--quiet-seconds=2", "--together-seconds=2"]
    command = [sys.executable, "-m", "benchmarks.siege", "forged", "dns-failing", *lengths, f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (tmp_path / "siege.json").exists(), done.stderr
    report = read_report(tmp_path / "siege.json")
    figures, effort = report.tables
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in figures.rows]
    assert [row["attack"] for row in rows] == [
        "quiet, 3 times",
        "forged reviews, 1,000/s",
        "a DNS zone that fails",
        "all of them together",
        "mark",
    ]
    assert (rows[0]["wrong"], rows[0]["lost"], rows[0]["known in time %"]) == (0, 0, 100)
    assert all(isinstance(row["RSS MB"], float) and row["RSS MB"] > 20 for row in rows[1:-1])
    assert all("answered" in str(row[-1]) for row in effort.rows)
    [faults] = [claim for claim in report.claims if claim.what == FAULTS]
    assert done.returncode == (0 if faults.holds else 1), done.stderr
