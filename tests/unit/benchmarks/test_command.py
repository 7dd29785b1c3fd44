"""`python -m benchmarks`: what it runs, what it leaves behind, and how it fails."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from benchmarks import __main__ as command
from benchmarks.report import Line, Plot, Report, Table, read_report
from testbed.debian_package import ProgramMissing

PLOT = Plot(name="drawn", title="t", x_label="x", y_label="y", lines=[Line("ours", [(0.0, 1.0)])], bars=True)


def report(*, fewer: int) -> Report:
    """A benchmark whose only figure is what it was asked for."""
    table = Table("asked", ["", "fewer"], [["figure", fewer]])
    return Report(name="good", question="What was asked?", tables=[table], plots=[PLOT])


def missing(*, fewer: int) -> Report:
    """A benchmark that cannot be run here."""
    raise ProgramMissing(f"wrk is not here, and so is no figure of {fewer}")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks `good` and `bad`, and `gone`, whose module is not there."""
    for name, run in (("good", report), ("bad", missing)):
        module = ModuleType(f"benchmarks.fake_{name}")
        module.__dict__["run"] = run
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(command, "MODULES", {name: f"benchmarks.fake_{name}" for name in ("good", "bad", "gone")})
    monkeypatch.setattr(command, "USUAL", ("good",))


def test_a_report_is_printed_and_kept_with_its_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name, the usual ones run."""
    command.main(None, out=tmp_path / "out", fewer=5)
    assert "What was asked?" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"good.json", "drawn.svg", "drawn.png"}
    assert list(read_report(tmp_path / "out" / "good.json").tables[0].rows[0]) == ["figure", 5]


def test_figures_are_compared_with_those_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with those of the folder that the new ones go to: they are read first."""
    command.main(["good"], out=tmp_path, fewer=2)
    capsys.readouterr()
    command.main(["good"], out=tmp_path, against=tmp_path, fewer=8)
    out = capsys.readouterr().out
    assert "after / before" in out
    assert any(line.split()[-3:] == ["2", "8", "4"] for line in out.splitlines())


def test_with_nothing_to_compare_with_the_figures_stand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so; it is no failure."""
    command.main(["good"], out=tmp_path / "out", against=tmp_path / "none")
    assert "good: nothing to compare with" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("bad", "wrk is not here"), ("gone", "No module named")])
def test_what_cannot_be_run_is_one_line_and_the_others_run_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    """The exit status is 1, the reports of the others are there."""
    with pytest.raises(typer.Exit) as caught:
        command.main([name, "good"], out=tmp_path)
    assert caught.value.exit_code == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"{name}: ")]
    assert why in line
    assert (tmp_path / "good.json").exists()


def test_an_unknown_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """The message lists those there are."""
    with pytest.raises(typer.BadParameter, match="nothing: there are good, bad, gone"):
        command.main(["good", "nothing"], out=tmp_path)
    assert not list(tmp_path.iterdir())
