"""What a benchmark says: claims held against marks, JSON that comes back, figures compared with those of before."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import (
    Claim,
    Line,
    Plot,
    Report,
    Table,
    compared,
    print_report,
    read_report,
    this_machine,
    write_report,
)


def report(p50: float, ratio: float = 4.0) -> Report:
    """A report with a table, a claim, a plot and a note."""
    return Report(
        name="speed",
        question="How fast?",
        tables=[
            Table("latency", ["", "p50 ms", "what", "samples"], [["filter", p50, "warm", None], ["new", 3, "", 7]])
        ],
        claims=[Claim(what="times faster", value=ratio, at_least=3)],
        plots=[Plot(name="speed", title="t", x_label="x", y_label="y", lines=[Line("ours", [(1.0, 2.0)])])],
        notes=["a note"],
        machine=this_machine(go="go1"),
    )


@pytest.mark.parametrize(
    ("claim", "holds", "mark"),
    [
        (Claim(what="", value=4, at_least=4), True, "≥ 4"),
        (Claim(what="", value=3.99, at_least=4), False, "≥ 4"),
        (Claim(what="", value=0.06, at_most=0.06), True, "≤ 0.06"),
        (Claim(what="", value=0.07, at_most=0.06), False, "≤ 0.06"),
        (Claim(what="", value=5, at_least=1, at_most=4), False, "≥ 1 and ≤ 4"),
        (Claim(what="", value=-1), True, ""),
    ],
)
def test_a_claim_holds_within_its_marks(claim: Claim, holds: bool, mark: str) -> None:
    """A figure on the mark holds, one beyond it does not, and without a mark there is nothing to miss."""
    assert (claim.holds, claim.mark) == (holds, mark)


def test_a_report_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    """The folder is made, the file is named after the report, and nothing is lost on the way."""
    written = write_report(tmp_path / "new", report(1.5))
    assert written == tmp_path / "new" / "speed.json"
    back = read_report(written)
    assert back.claims == report(1.5).claims
    assert [list(row) for row in back.tables[0].rows] == [["filter", 1.5, "warm", None], ["new", 3, "", 7]]
    assert back.machine == report(1.5).machine
    assert back.plots[0].lines[0].points == [(1.0, 2.0)]


def test_comparing_shows_every_figure_of_both_and_nothing_else() -> None:
    """After over before, for cells and claims; words and missing figures are passed over."""
    table = compared(report(2.0, ratio=4.0), report(1.0, ratio=8.0))
    assert [list(row) for row in table.rows] == [
        ["latency: filter, p50 ms", 2.0, 1.0, 0.5],
        ["latency: new, p50 ms", 3, 3, 1.0],
        ["latency: new, samples", 7, 7, 1.0],
        ["times faster", 4.0, 8.0, 2.0],
    ]


def test_figures_that_only_one_report_has_are_not_compared() -> None:
    """A benchmark that has gained a row can still be held against what was measured before."""
    before = Report(name="speed", question="", tables=[Table("latency", ["", "p50 ms"], [["filter", 2.0]])])
    assert [row[0] for row in compared(before, report(1.0)).rows] == ["latency: filter, p50 ms"]


def test_nothing_is_divided_by_nothing() -> None:
    """A figure that was 0 has no ratio."""
    [row, *_] = compared(report(0.0), report(1.0)).rows
    assert row[-1] is None


def test_a_printed_report_tells_its_figures_and_which_claims_are_missed() -> None:
    """The question, the rows, the claim with its mark and how it stands, the note, the version of what was measured."""
    console = Console(file=io.StringIO(), width=160)
    print_report(console, report(1234.5, ratio=2.0))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(told in text for told in ("How fast?", "1,234", "times faster", "≥ 3", "missed", "a note", "go go1"))
