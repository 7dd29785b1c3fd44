"""The command `python -m tests.fuzz`: its table, and its exit codes."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz.__main__ import Outcome, main

QUIET = Outcome("references", 7200, 60.0, 0.0123, 80.0, 83.0, ())


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Outcome, *arguments: str) -> int:
    """Returns the exit code if every target's process ends with this outcome."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(command, "fuzz", lambda name, *_others: outcome._replace(name=name))
    monkeypatch.setattr(sys, "argv", ["fuzz", "--keep", str(tmp_path), *arguments])
    return main()


def test_each_target_has_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the inputs of an hour at this speed, the slowest input, and the growth of the process."""
    assert run(monkeypatch, tmp_path, QUIET, "manifests", "waits") == 0
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in cells[1:-1]] for cells in lines[2:4]]
    assert rows == [[name, "7,200", "432,000", "0", "12.3", "80", "+3"] for name in ("manifests", "waits")]
    assert lines[4][0].startswith("14,400 inputs in 2 minutes")


def test_an_input_that_crashes_is_shown_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Together with the end of the log, which has the traceback."""
    (tmp_path / "waits").mkdir()
    (tmp_path / "waits" / "log").write_text("before\n === Uncaught Python exception: ===\nValueError: no float\n")
    crash = tmp_path / "waits" / "crash-1"
    crash.write_bytes(b"5\x1e")
    assert run(monkeypatch, tmp_path, QUIET._replace(findings=(crash,)), "waits") == 1
    out = capsys.readouterr().out
    assert "ValueError: no float" in out
    assert r"b'5\x1e'" in out
    assert "before" not in out


def test_a_target_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A misspelt name would otherwise fuzz nothing."""
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, tmp_path, QUIET, "manifest")
    assert ended.value.code == 2


def test_without_the_engine_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no wheel for every interpreter."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["fuzz"])
    assert main() == 2
    assert "atheris" in capsys.readouterr().err
