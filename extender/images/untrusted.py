"""Untrusted text and JSON: quoting text safely, and decoding JSON as container runtimes do."""

from typing import TypeVar

from extender import go_json
from extender.errors import InvalidManifest

_SHOWN = 100  # characters: enough to recognise the text, too few to fill a log line or an event
# Of a document: configs of a hundred layers and long labels have some thousand. This many take 40 MB and 60 ms.
_MOST_VALUES = 100_000

T = TypeVar("T")


def quote(text: str, most: int = _SHOWN) -> str:
    """`text` in quotes on one line, with control characters escaped and cut off by `…` after `most` characters."""
    shown = repr(text[:most])
    return shown if len(shown) <= most else f"{shown[:most]}…"


def decode_json(kind: type[T], body: bytes) -> T:
    """The document in `body`, as `go_json.decode` reads it.

    Raises:
        InvalidManifest: not JSON, nested too deep, too many values, or a field of the wrong type.
    """
    try:
        return go_json.decode(kind, body, most_values=_MOST_VALUES)
    except go_json.InvalidJson as exc:
        raise InvalidManifest(f"the document cannot be read: {exc}") from exc
