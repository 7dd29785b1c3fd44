"""Draws the plots of benchmark reports as SVG files that follow the reader's colour scheme.

The figures are files of `benchmarks.report`, committed in docs/figures, so that no benchmark has to run again.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.plots import DARK, LIGHT, svg_of
from benchmarks.report import Plot, read_report

_STYLE = """<style>
.dark { display: none }
@media (prefers-color-scheme: dark) { .light { display: none } .dark { display: inline } }
</style>"""


def read_plots(folder: Path) -> Iterator[Plot]:
    """Yields the plots of every report in the folder, in the order of the files' names."""
    for path in sorted(folder.glob("*.json")):
        yield from read_report(path).plots


def themed_svg_of(plot: Plot) -> str:
    """Returns one SVG file that holds the plot in both themes and shows the one that the reader prefers."""
    drawn = {theme.name: svg_of(plot, theme) for theme in (LIGHT, DARK)}
    groups = "".join(f'<g class="{name}">{_content(text)}</g>\n' for name, text in drawn.items())
    return f"{_opening(drawn[LIGHT.name])}\n{_STYLE}\n{groups}</svg>\n"


def _opening(document: str) -> str:
    """Returns the root's tag, without the document type before it, which names another host."""
    return document[document.index("<svg") :].partition(">")[0] + ">"


def _content(document: str) -> str:
    """Returns the content of the root."""
    inside = document[document.index("<svg") :].partition(">")[2].rpartition("</svg>")[0]
    return "\n".join(line.rstrip() for line in inside.splitlines()) + "\n"
