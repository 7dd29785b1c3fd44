"""Plots of a report as SVG and PNG files, the same bytes from the same figures.

Knows matplotlib; must not know what is measured.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.report import Line, Plot

WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.6
BAR_INCHES, BESIDE_BARS_INCHES = 0.42, 1.1  # height of a bar, and of the title and the axis
DOTS_PER_INCH = 144
# Okabe and Ito's colours, which most people can tell apart however they see them.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#000000")
MARKERS = "osD^vPX*"


def draw_plot(folder: Path, plot: Plot) -> list[Path]:
    """`plot.name`.svg and .png in `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": plot.name, "svg.fonttype": "none", "font.size": 10, "axes.axisbelow": True}):
        height = BESIDE_BARS_INCHES + BAR_INCHES * len(plot.lines) if plot.bars else HEIGHT_INCHES
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        (_draw_bars if plot.bars else _draw_lines)(axes, plot)
        axes.set_title(plot.title, loc="left", fontweight="bold")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        paths = [folder / f"{plot.name}.svg", folder / f"{plot.name}.png"]
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
        figure.savefig(paths[1], dpi=DOTS_PER_INCH, metadata={"Software": None})
    return paths


def _draw_lines(axes: Axes, plot: Plot) -> None:
    for index, line in enumerate(plot.lines):
        xs, ys = zip(*line.points, strict=True)
        axes.plot(
            xs,
            ys,
            label=line.name,
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linestyle="-" if index < len(COLORS) else "--",
        )
    if plot.log_x:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(FuncFormatter(_shown))
    axes.yaxis.set_major_formatter(FuncFormatter(_shown))
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    axes.legend(frameon=False, loc="best")


def _draw_bars(axes: Axes, plot: Plot) -> None:
    """Level bars, the first on top, each with its figure: names have room, and small ones can be read."""
    heights = [_height(line) for line in plot.lines]
    colors = [COLORS[index % len(COLORS)] for index in range(len(heights))]
    bars = axes.barh([line.name for line in plot.lines], heights, color=colors, height=0.62)
    axes.bar_label(bars, labels=[_shown(height) for height in heights], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_shown))
    axes.set_xlabel(plot.y_label)
    axes.set_ylabel(plot.x_label)
    axes.grid(visible=True, axis="x", color="#dddddd", linewidth=0.8)
    axes.tick_params(axis="y", length=0)


def _height(line: Line) -> float:
    [(_, height)] = line.points
    return height


def _shown(value: float, _position: int | None = None) -> str:
    """Thousands apart, and no more digits than say something."""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"
