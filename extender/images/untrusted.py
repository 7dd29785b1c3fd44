"""Untrusted text and JSON: quoting text safely, and decoding documents of images."""

from typing import TypeVar

from extender.errors import InvalidManifest
from extender.lenient_json import InvalidJson, LenientDecoder

_SHOWN = 100  # characters: enough to recognise the text, too few to fill a log line or an event
# Of a document: configs of a hundred layers and long labels have some thousand. This many take 40 MB and 60 ms.
_MOST_VALUES = 100_000

T = TypeVar("T")


def quote(text: str, most: int = _SHOWN) -> str:
    """`text` in quotes on one line, with control characters escaped and cut off by `…` after `most` characters."""
    shown = repr(text[:most])
    return shown if len(shown) <= most else f"{shown[:most]}…"


def document_decoder(kind: type[T]) -> LenientDecoder[T]:
    """The decoder of a kind of document."""
    return LenientDecoder(kind, most_values=_MOST_VALUES)


def decode_json(decoder: LenientDecoder[T], body: bytes) -> T:
    """The document in `body`.

    Raises:
        InvalidManifest: not JSON, nested too deep, too many values, or a field of the wrong type.
    """
    try:
        return decoder.decode(body)
    except InvalidJson as exc:
        raise InvalidManifest(f"the document cannot be read: {exc}") from exc
