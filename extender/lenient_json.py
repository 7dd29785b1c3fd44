"""Decodes JSON that others wrote, of which msgspec takes less than the programs for which it was written.

Text that is no UTF-8, and half a surrogate pair, become U+FFFD, also where nobody reads them. Any field, element or
value may be `null` in such documents: types say so by `| None`.
"""

import re
from typing import Generic, TypeVar

import msgspec

# A backslash that is escaped begins no other escape. The group is a whole pair, which stays too. Each match begins with
# a character that is rare, which the engine finds fast: a document may have megabytes.
_SURROGATES = re.compile(r"\\(?:\\|(u[dD][89abAB]..\\u[dD][c-fC-F]..)|u[dD][89a-fA-F][0-9a-fA-F]{2})")

T = TypeVar("T")


class InvalidJson(ValueError):
    """The bytes are no JSON, or not of the type. The message quotes nothing of them."""


class LenientDecoder(Generic[T]):
    """Decodes values of one type, as many as come. Build it once."""

    def __init__(self, kind: type[T], *, most_values: int) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._most_values = most_values

    def decode(self, body: bytes) -> T:
        """The value in `body`; an empty one for `null`. Keys that the type does not declare are ignored. O(bytes).

        Raises:
            InvalidJson: not JSON, nested too deep, more than `most_values` values, or a field of another type.
        """
        if sum(map(body.count, (b",", b"[", b"{"))) > self._most_values:
            raise InvalidJson(f"it has more than {self._most_values} values")
        text = _SURROGATES.sub(_whole, body.decode(errors="replace"))
        try:
            return self._decoder.decode("{}" if text.strip() == "null" else text)
        except msgspec.DecodeError as exc:
            raise InvalidJson(str(exc)) from None
        except RecursionError:
            raise InvalidJson("it is nested too deep") from None


def _whole(found: re.Match[str]) -> str:
    return found[0] if found[1] or found[0] == r"\\" else r"\ufffd"
