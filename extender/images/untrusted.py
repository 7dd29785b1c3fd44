"""Text and JSON from outside: shown safely, and decoded with every failure translated.

Knows nothing of what the text or the document means.
"""

from typing import TypeVar

import msgspec

from extender.errors import InvalidManifest

_SHOWN = 100  # characters: enough to recognise what was written, too few to fill a log line or an event

T = TypeVar("T")


def quote(text: str) -> str:
    """`text` between quotes on one line, control characters escaped, cut off with `…` after 100 characters."""
    shown = repr(text[:_SHOWN])
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The document in `body`. Unknown keys are ignored; of a key that comes twice the last one counts, as in Go.

    Raises:
        InvalidManifest: no JSON, no UTF-8 where it is read, nested too deep, or a field of the wrong type.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidManifest(f"the document cannot be read: {exc}") from exc
    except RecursionError as exc:
        raise InvalidManifest("the document cannot be read: it is nested too deep") from exc
