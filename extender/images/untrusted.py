"""Untrusted text and JSON: quoting text safely, and decoding JSON with every failure translated."""

from typing import TypeVar

import msgspec

from extender.errors import InvalidManifest

_SHOWN = 100  # characters: enough to recognise the text, too few to fill a log line or an event

T = TypeVar("T")


def quote(text: str, most: int = _SHOWN) -> str:
    """`text` in quotes on one line, with control characters escaped and cut off by `…` after `most` characters."""
    shown = repr(text[:most])
    return shown if len(shown) <= most else f"{shown[:most]}…"


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The document in `body`. Unknown keys are ignored; the last of duplicate keys counts, as in Go.

    Raises:
        InvalidManifest: not JSON, not UTF-8 in a field that is read, nested too deep, or a field of the wrong type.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidManifest(f"the document cannot be read: {exc}") from exc
    except RecursionError as exc:
        raise InvalidManifest("the document cannot be read: it is nested too deep") from exc
