"""Plots as files: what kind they are, that they show what they are of, and that they do not change by themselves."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.plots import draw_plot
from benchmarks.report import Line, Plot

LINES = Plot(
    name="growth",
    title="Latency by names",
    x_label="names",
    y_label="milliseconds",
    lines=[Line("ours", [(10, 0.1), (15_000, 0.6)]), Line("typed Go", [(10, 0.2), (15_000, 8)])],
)
IMAGES = Plot(
    name="images", title="By images", x_label="images", y_label="ms", lines=[Line("ours", [(1, 1), (9, 1)])], log_x=True
)
BARS = Plot(
    name="speed",
    title="Median",
    x_label="",
    y_label="milliseconds",
    lines=[Line("ours", [(0, 0.307)]), Line("typed Go", [(0, 2507.0)])],
    bars=True,
)


@pytest.mark.parametrize("plot", [LINES, IMAGES, BARS], ids=["lines", "log", "bars"])
def test_a_plot_becomes_an_svg_and_a_png(tmp_path: Path, plot: Plot) -> None:
    """Both are what their names say, in a folder that need not be there; the SVG holds its words as text."""
    svg, png = draw_plot(tmp_path / "new", plot)
    assert (svg.name, png.name) == (f"{plot.name}.svg", f"{plot.name}.png")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    words = {text.strip() for text in ElementTree.parse(svg).getroot().itertext()}
    assert {plot.title, plot.y_label, *(line.name for line in plot.lines)} <= words


def test_bars_tell_their_figures(tmp_path: Path) -> None:
    """Small and large ones, so that nobody must guess from the axis."""
    svg, _ = draw_plot(tmp_path, BARS)
    words = {text.strip() for text in ElementTree.parse(svg).getroot().itertext()}
    assert {"0.307", "2,507"} <= words


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    """A plot in the repository changes when its figures do, and not because the date has."""
    first = [path.read_bytes() for path in draw_plot(tmp_path / "one", LINES)]
    second = [path.read_bytes() for path in draw_plot(tmp_path / "two", LINES)]
    assert first == second
