"""Pictures show what their sources say, and need nothing from elsewhere."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks.report import Plot
from testbed.demo.story import SCENES
from tools.docs.pages import DOCS
from tools.docs.pictures.__main__ import RECORDING
from tools.docs.pictures.diagram import Arrow, Box, Diagram, Kind, svg_of
from tools.docs.pictures.diagrams import DIAGRAMS
from tools.docs.pictures.plots import read_plots, themed_svg_of

PICTURES = tuple(sorted((DOCS / "pictures").iterdir()))
PLOTS = tuple(read_plots(DOCS / "figures"))
NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
DIAGRAM = Diagram(
    name="two",
    title="a & b",
    boxes=[Box("a", 0, 0, ["a & b"], Kind.OURS), Box("b", 1, 0, ["c"])],
    arrows=[Arrow("a", "b", "asks")],
)


def words_of(svg: str) -> list[str]:
    """The texts of a picture, in order."""
    found = [text.replace("\xa0", " ").strip() for text in ElementTree.fromstring(svg).itertext()]
    return [text for text in found if text]


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_diagrams_are_current(diagram: Diagram) -> None:
    """`make docs-pictures` would write the same bytes."""
    assert (DOCS / "pictures" / f"{diagram.name}.svg").read_text() == svg_of(diagram)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_plots_are_current(plot: Plot) -> None:
    """Each shows the figures of docs/figures; where exactly is up to the version of matplotlib."""
    committed = (DOCS / "pictures" / f"{plot.name}.svg").read_text()
    assert words_of(committed) == words_of(themed_svg_of(plot))
    assert {plot.title, plot.y_label, *(line.name for line in plot.lines)} <= set(words_of(committed))


def test_the_recording_is_of_the_demo() -> None:
    """It shows each of the demo's images and why nodes were refused; ports and times are those of one run."""
    shown = "".join(words_of((DOCS / "pictures" / f"{RECORDING}.svg").read_text()))
    for scene in SCENES:
        assert scene.title in shown
        assert scene.refusal in shown
    named = set(re.findall(r"127\.0\.0\.1:\d+/([a-z/]+):1\.0", shown))
    assert named == {scene.repository for scene in SCENES if scene.refusal or scene.error}
