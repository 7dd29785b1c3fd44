"""`python -m tools.docs.pictures` writes all pictures into docs/pictures."""

from tools.docs.pages import DOCS
from tools.docs.pictures.diagram import svg_of
from tools.docs.pictures.diagrams import DIAGRAMS
from tools.docs.pictures.recording import record_demo

RECORDING = "demo"


def main() -> None:
    """Writes all pictures. Only the recording changes from run to run."""
    drawn = {diagram.name: svg_of(diagram) for diagram in DIAGRAMS}
    drawn[RECORDING] = record_demo()
    for name, text in drawn.items():
        (DOCS / "pictures" / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
