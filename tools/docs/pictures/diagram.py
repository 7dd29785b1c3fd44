"""Diagrams as values: boxes on a grid, frames around them, arrows between them; and a diagram's SVG file.

This file sets how diagrams look in light and in dark; `diagrams.py` declares them. The text of a file depends only on
the diagram.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

import msgspec

CELL_WIDTH, CELL_HEIGHT = 172, 62
COLUMN_GAP, ROW_GAP = 52, 40
MARGIN = 20
FRAME_PADDING, FRAME_TITLE = 16, 22
FONT_SIZE, LINE_HEIGHT = 13, 17
CHARACTER_WIDTH = 7.4  # the average of the widest common font
_LABEL_SIZE = 12
_ARROW_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
)
_FONTS = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


class Kind(enum.StrEnum):
    """What a box stands for, which sets its colour."""

    OURS = "ours"
    OTHER = "other"
    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Box(msgspec.Struct, frozen=True):
    """A box at a column and row of the grid, of so many `columns` and `rows`. The first line is its heading."""

    name: str
    column: float
    row: float
    lines: Sequence[str]
    kind: Kind = Kind.OTHER
    columns: float = 1
    rows: float = 1

    @property
    def left(self) -> float:
        """The left edge in pixels."""
        return self.column * (CELL_WIDTH + COLUMN_GAP)

    @property
    def top(self) -> float:
        """The upper edge in pixels."""
        return self.row * (CELL_HEIGHT + ROW_GAP)

    @property
    def width(self) -> float:
        """The width in pixels."""
        return self.columns * CELL_WIDTH + (self.columns - 1) * COLUMN_GAP

    @property
    def height(self) -> float:
        """The height in pixels."""
        return self.rows * CELL_HEIGHT + (self.rows - 1) * ROW_GAP

    @property
    def right(self) -> float:
        """The right edge in pixels."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The lower edge in pixels."""
        return self.top + self.height

    @property
    def middle(self) -> tuple[float, float]:
        """The middle in pixels."""
        return self.left + self.width / 2, self.top + self.height / 2


class Arrow(msgspec.Struct, frozen=True):
    """An arrow from one box to another, by their names, with a head at the end or at both ends (`both`).

    `shift` moves it sideways by so many pixels, `label_shift` moves its label down.
    """

    start: str
    end: str
    label: str = ""
    both: bool = False
    shift: float = 0
    label_shift: float = 0


class Frame(msgspec.Struct, frozen=True):
    """A titled outline around the boxes of these names."""

    title: str
    around: Sequence[str]


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """A picture: `name` is the file's stem, `title` is the text for readers who cannot see it."""

    name: str
    title: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow] = ()
    frames: Sequence[Frame] = ()


class _Outline(msgspec.Struct, frozen=True):
    """The position of a frame, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


_LIGHT = {
    "surface": "#ffffff", "outline": "#d0d7de", "text": "#1f2328", "muted": "#59636e", "line": "#59636e",
    "frame": "#f6f8fa", "ours": "#ddf4ff", "ours-line": "#0969da", "other": "#ffffff", "other-line": "#818b98",
    "yes": "#dafbe1", "yes-line": "#1a7f37", "no": "#ffebe9", "no-line": "#cf222e", "maybe": "#fff8c5",
    "maybe-line": "#9a6700",
}  # fmt: skip
_DARK = {
    "surface": "#0d1117", "outline": "#3d444d", "text": "#f0f6fc", "muted": "#9198a1", "line": "#9198a1",
    "frame": "#151b23", "ours": "#0c2d57", "ours-line": "#4493f8", "other": "#212830", "other-line": "#818b98",
    "yes": "#10361b", "yes-line": "#3fb950", "no": "#4b1113", "no-line": "#f85149", "maybe": "#3f2f05",
    "maybe-line": "#d29922",
}  # fmt: skip


def svg_of(diagram: Diagram) -> str:
    """Returns the diagram as an SVG file that follows the reader's colour scheme and needs no other file.

    Raises:
        ValueError: a text does not fit into its box.
    """
    boxes = {box.name: box for box in diagram.boxes}
    outlines = [_outline(frame, boxes) for frame in diagram.frames]
    shapes: list[Box | _Outline] = [*diagram.boxes, *outlines]
    left, top = min(shape.left for shape in shapes) - MARGIN, min(shape.top for shape in shapes) - MARGIN
    width = max(shape.right for shape in shapes) + MARGIN - left
    height = max(shape.bottom for shape in shapes) + MARGIN - top
    parts = [
        _opening(left, top, width, height),
        f'<title id="title">{escape(diagram.title)}</title>',
        f"<style>{_style()}</style>",
        _ARROW_HEAD,
        f'<rect class="surface" {_position(left + 1, top + 1, width - 2, height - 2)} rx="8"/>',
        *(_frame_text(frame, outline) for frame, outline in zip(diagram.frames, outlines, strict=True)),
        *(_arrow_text(arrow, boxes) for arrow in diagram.arrows),
        *(_box_text(box) for box in diagram.boxes),
        *filter(None, (_label_text(arrow, boxes) for arrow in diagram.arrows)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _opening(left: float, top: float, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:g} {top:g} {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title">'
    )


def _position(left: float, top: float, width: float, height: float) -> str:
    return f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'


def _style() -> str:
    rules = [
        f"text{{font:{FONT_SIZE}px {_FONTS};text-anchor:middle}}",
        ".title{text-anchor:start;font-weight:600}.beside{text-anchor:start}.heading{font-weight:600}",
        f".label{{font-size:{_LABEL_SIZE}px}}",
        ".arrow{fill:none;stroke-width:1.5}rect{stroke-width:1.2}",
        *_colours(_LIGHT),
        f"@media (prefers-color-scheme:dark){{{''.join(_colours(_DARK))}}}",
    ]
    return "\n".join(rules)


def _colours(theme: Mapping[str, str]) -> Iterator[str]:
    yield f".surface{{fill:{theme['surface']};stroke:{theme['outline']}}}"
    yield f".frame{{fill:{theme['frame']};stroke:{theme['outline']}}}"
    yield f"text{{fill:{theme['text']}}}.title,.label{{fill:{theme['muted']}}}"
    yield f".arrow{{stroke:{theme['line']}}}.head{{fill:{theme['line']}}}"
    for kind in Kind:
        yield f".{kind}{{fill:{theme[kind]};stroke:{theme[f'{kind}-line']}}}"


def _outline(frame: Frame, boxes: Mapping[str, Box]) -> "_Outline":
    inside = [boxes[name] for name in frame.around]
    return _Outline(
        min(box.left for box in inside) - FRAME_PADDING,
        min(box.top for box in inside) - FRAME_PADDING - FRAME_TITLE,
        max(box.right for box in inside) + FRAME_PADDING,
        max(box.bottom for box in inside) + FRAME_PADDING,
    )


def _frame_text(frame: Frame, outline: "_Outline") -> str:
    width, height = outline.right - outline.left, outline.bottom - outline.top
    return (
        f'<rect class="frame" {_position(outline.left, outline.top, width, height)} rx="8"/>'
        f'<text class="title" x="{outline.left + FRAME_PADDING:g}" y="{outline.top + FRAME_TITLE:g}">'
        f"{escape(frame.title)}</text>"
    )


def _box_text(box: Box) -> str:
    if max(map(len, box.lines)) * CHARACTER_WIDTH > box.width:
        raise ValueError(f"{box.name}: a line is wider than its box")
    x, y = box.middle
    first = y - (len(box.lines) - 1) * LINE_HEIGHT / 2 + FONT_SIZE * 0.35
    classes = [' class="heading"', *[""] * len(box.lines)]
    lines = [
        f'<text{name} x="{x:g}" y="{first + number * LINE_HEIGHT:g}">{escape(line)}</text>'
        for number, (name, line) in enumerate(zip(classes, box.lines, strict=False))
    ]
    rectangle = f'<rect class="{box.kind}" {_position(box.left, box.top, box.width, box.height)} rx="6"/>'
    return rectangle + "".join(lines)


def _points(arrow: Arrow, boxes: Mapping[str, Box]) -> list[tuple[float, float]]:
    """Returns the corners of the arrow: straight where the boxes face each other, else with one or two right angles."""
    start, end = boxes[arrow.start], boxes[arrow.end]
    if start.right < end.left or end.right < start.left:
        forward = start.right < end.left
        x0, x1 = (start.right, end.left) if forward else (start.left, end.right)
        y0, y1 = start.middle[1] + arrow.shift, end.middle[1] + arrow.shift
        shared = _shared((start.top, start.bottom), (end.top, end.bottom))
        if shared is not None:
            y0 = y1 = shared + arrow.shift
            return [(x0, y0), (x1, y1)]
        turn = x0 + (x1 - x0) / 2
        return [(x0, y0), (turn, y0), (turn, y1), (x1, y1)]
    down = start.bottom < end.top
    y0, y1 = (start.bottom, end.top) if down else (start.top, end.bottom)
    shared = _shared((start.left, start.right), (end.left, end.right))
    x = (start.middle[0] if shared is None else shared) + arrow.shift
    return [(x, y0), (x, y1)]


def _shared(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """Returns the middle of the overlap of two ranges; None if they do not overlap."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low + high) / 2 if low < high else None


def _arrow_text(arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    points = " ".join(f"{x:g},{y:g}" for x, y in _points(arrow, boxes))
    tail = ' marker-start="url(#head)"' if arrow.both else ""
    return f'<polyline class="arrow" points="{points}" marker-end="url(#head)"{tail}/>'


def _label_text(arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    """Returns the label, above a horizontal arrow or beside a vertical one; empty for an arrow without a label."""
    if not arrow.label:
        return ""
    (x0, y0), (x1, y1) = _points(arrow, boxes)[-2:]
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    if y0 == y1:
        return f'<text class="label" x="{x:g}" y="{y - 9 + arrow.label_shift:g}">{escape(arrow.label)}</text>'
    return f'<text class="label beside" x="{x + 8:g}" y="{y + 2:g}">{escape(arrow.label)}</text>'
