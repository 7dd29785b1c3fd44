"""Pictures show what their sources say, and need nothing from elsewhere."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.report import Plot
from docs.make_pictures.__main__ import RECORDING
from docs.make_pictures.diagram import Arrow, Box, Diagram, Kind, svg_of
from docs.make_pictures.diagrams import DIAGRAMS
from docs.make_pictures.plots import read_plots, themed_svg_of
from extender.demo.story import SCENES
from tests.unit.docs.pages import ALL, DOCS, links, name_of

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


@pytest.mark.parametrize("path", PICTURES, ids=name_of)
def test_a_picture_needs_no_other_file(path: Path) -> None:
    """No attribute and no style leads out of the file; the only addresses are the names of SVG's namespaces."""
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert "<!DOCTYPE" not in text
    assert set(re.findall(r'xmlns(?::\w+)?="([^"]*)"', text)) <= set(NAMESPACES)
    said = [value for element in root.iter() for value in element.attrib.values()]
    said += [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}style")]
    assert [value for value in said if "//" in value or "@import" in value or "@font-face" in value] == []
    assert set(re.findall(r"url\(([^)])", text)) <= {"#"}
    assert root.findall(".//{http://www.w3.org/2000/svg}image") == []


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_a_diagram_has_colours_for_light_and_dark(diagram: Diagram) -> None:
    """Every kind of box has both."""
    light, _, dark = svg_of(diagram).partition("@media (prefers-color-scheme:dark)")
    for kind in Kind:
        assert f".{kind}{{fill:" in light
        assert f".{kind}{{fill:" in dark


def test_every_picture_is_shown_and_none_is_drawn_by_hand() -> None:
    """Each file is of a diagram, of figures or the recording, and some page shows it."""
    drawn = {*(diagram.name for diagram in DIAGRAMS), *(plot.name for plot in PLOTS), RECORDING}
    shown = {Path(link).stem for path in ALL for link in links(path.read_text()) if link.endswith(".svg")}
    assert {path.stem for path in PICTURES} == drawn == shown


def test_texts_are_escaped() -> None:
    """An ampersand is one in the picture."""
    assert words_of(svg_of(DIAGRAM)).count("a & b") == 2


def test_a_text_that_does_not_fit_is_refused() -> None:
    """Instead of being drawn over the next box."""
    wide = Diagram(name="wide", title="", boxes=[Box("a", 0, 0, ["far too long for one box of a column"])])
    with pytest.raises(ValueError, match="a: a line is wider than its box"):
        svg_of(wide)


def test_an_arrow_ends_at_its_boxes() -> None:
    """It starts at the right edge of one and ends at the left edge of the next."""
    start, end = DIAGRAM.boxes
    assert f'points="{start.right:g},31 {end.left:g},31"' in svg_of(DIAGRAM)
