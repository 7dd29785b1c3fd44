"""Draws the plots of a report as SVG and PNG files. The same figures and theme give the same bytes.

This is the file that imports matplotlib.
"""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.report import Line, Plot

WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.6
BAR_INCHES, BESIDE_BARS_INCHES = 0.42, 1.1  # height of a bar, and of the title with the axis
DOTS_PER_INCH = 144
MARKERS = "osD^vPX*"


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """The colours of a plot; `series` are those of its lines or bars, in order."""

    name: str
    background: str
    text: str
    grid: str
    series: Sequence[str]


# Okabe and Ito's colours, which most people can tell apart, colour-blind people included.
LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#000000",
    grid="#dddddd",
    series=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#000000"),
)
DARK = Theme(
    name="dark",
    background="#0d1117",
    text="#f0f6fc",
    grid="#3d444d",
    series=("#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#F0E442", "#9198a1", "#ffffff"),
)


def draw_plot(folder: Path, plot: Plot) -> list[Path]:
    """Writes `plot.name`.svg and .png into `folder`, which is created if missing, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{plot.name}.svg", folder / f"{plot.name}.png"]
    paths[0].write_text(svg_of(plot, LIGHT), encoding="utf-8")
    with _style(plot, LIGHT):
        _drawn(plot, LIGHT).savefig(paths[1], dpi=DOTS_PER_INCH, metadata={"Software": None})
    return paths


def svg_of(plot: Plot, theme: Theme) -> str:
    """Returns the plot as the text of an SVG file.

    Its identifiers are unique, so that one document can hold several plots.
    """
    text = io.StringIO()
    with _style(plot, theme):
        _drawn(plot, theme).savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return text.getvalue()


def _style(plot: Plot, theme: Theme) -> AbstractContextManager[None]:
    return mpl.rc_context(
        {
            "svg.hashsalt": f"{plot.name}-{theme.name}",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.axisbelow": True,
            "text.color": theme.text,
            "axes.labelcolor": theme.text,
            "axes.edgecolor": theme.text,
            "xtick.color": theme.text,
            "ytick.color": theme.text,
            "axes.facecolor": theme.background,
            "figure.facecolor": theme.background,
        }
    )


def _drawn(plot: Plot, theme: Theme) -> Figure:
    height = BESIDE_BARS_INCHES + BAR_INCHES * len(plot.lines) if plot.bars else HEIGHT_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    (_draw_bars if plot.bars else _draw_lines)(axes, plot, theme)
    axes.set_title(plot.title, loc="left", fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _draw_lines(axes: Axes, plot: Plot, theme: Theme) -> None:
    for index, line in enumerate(plot.lines):
        xs, ys = zip(*line.points, strict=True)
        axes.plot(
            xs,
            ys,
            label=line.name,
            color=theme.series[index % len(theme.series)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linestyle="-" if index < len(theme.series) else "--",
        )
    if plot.log_x:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(FuncFormatter(_shown))
    axes.yaxis.set_major_formatter(FuncFormatter(_shown))
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, color=theme.grid, linewidth=0.8)
    axes.legend(frameon=False, loc="best")


def _draw_bars(axes: Axes, plot: Plot, theme: Theme) -> None:
    """Draws horizontal bars, the first on top, with figures, so that long names fit and short bars can be read."""
    heights = [_height(line) for line in plot.lines]
    colors = [theme.series[index % len(theme.series)] for index in range(len(heights))]
    bars = axes.barh([line.name for line in plot.lines], heights, color=colors, height=0.62)
    axes.bar_label(bars, labels=[_shown(height) for height in heights], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_shown))
    axes.set_xlabel(plot.y_label)
    axes.set_ylabel(plot.x_label)
    axes.grid(visible=True, axis="x", color=theme.grid, linewidth=0.8)
    axes.tick_params(axis="y", length=0)


def _height(line: Line) -> float:
    [(_, height)] = line.points
    return height


def _shown(value: float, _position: int | None = None) -> str:
    """Returns the value with thousands separators, or with three significant digits below 100."""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"
