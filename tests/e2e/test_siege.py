"""The siege can be laid, and finds what it is told to look for.

It is here because it makes namespaces of network and mounts, as the control plane's tests need a machine of their own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import read_report
from benchmarks.siege.attacks import ATTACKS
from benchmarks.siege.figures import COLUMNS
from benchmarks.siege.siege import FAULTS
from testbed.hostile_layers import KINDS


@pytest.mark.slow
def test_a_short_siege_measures_every_phase(tmp_path: Path) -> None:
    """Two attacks alone, then together; in quiet times every answer is right."""
    names = ("dns", "forged")
    command = [sys.executable, "-m", "benchmarks.siege", *(f"--only={name}" for name in names), "--seconds=2"]
    done = subprocess.run([*command, f"--out={tmp_path}"], capture_output=True, text=True, check=False, timeout=300)
    assert (tmp_path / "siege.json").exists(), done.stderr
    report = read_report(tmp_path / "siege.json")
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in report.tables[0].rows]
    attacks = [ATTACKS[name].words for name in names]
    assert [row["phase"] for row in rows] == ["quiet", *attacks, "all attacks together", "mark"]
    assert (rows[0]["wrong"], rows[0]["lost"], rows[0]["known %"]) == (0, 0, 100)
    assert all(isinstance(row["service MB"], float) and row["service MB"] > 20 for row in rows[:-1])
    did = [note for note in report.notes if note.startswith((*attacks, "all attacks together"))]
    assert len([note for note in did if "reviews answered" in note]) == 3, did
    [faults] = [claim for claim in report.claims if claim.what == FAULTS]
    assert done.returncode == (0 if faults.holds else 1), done.stderr


@pytest.mark.slow
def test_hostile_layers_change_nothing(tmp_path: Path) -> None:
    """Each kind stays *claimed*, with its reason; the service looks at some, and answers honest tenants right."""
    command = [sys.executable, "-m", "benchmarks.siege", "--only=layers", "--seconds=40", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (tmp_path / "siege.json").exists(), done.stderr
    report = read_report(tmp_path / "siege.json")
    assert [(row[0], row[1]) for row in report.tables[1].rows] == [(kind, "claimed") for kind in KINDS]
    assert all(claim.holds for claim in report.claims), report
    assert any("verifications claimed" in note for note in report.notes), report.notes
