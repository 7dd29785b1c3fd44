"""`python -m docs.make_pictures` writes all pictures into docs/pictures."""

from pathlib import Path

from docs.make_pictures.diagram import svg_of
from docs.make_pictures.diagrams import DIAGRAMS
from docs.make_pictures.plots import read_plots, themed_svg_of
from docs.make_pictures.recording import record_demo

DOCS = Path(__file__).parents[1]
RECORDING = "demo"


def main() -> None:
    """Writes all pictures. Only the recording changes from run to run."""
    drawn = {diagram.name: svg_of(diagram) for diagram in DIAGRAMS}
    drawn |= {plot.name: themed_svg_of(plot) for plot in read_plots(DOCS / "figures")}
    drawn[RECORDING] = record_demo()
    for name, text in drawn.items():
        (DOCS / "pictures" / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
