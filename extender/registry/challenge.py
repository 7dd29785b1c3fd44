"""What a WWW-Authenticate header says, by the grammar of RFC 9110 §11.6.1.

Knows no registry: which challenge is answered, and how, is `auth`'s business.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# One list element: a scheme, a parameter, or a scheme with its first parameter (or its token68, as Negotiate has it).
# An unquoted value may hold what no token may, since `realm=https://…` and `realm=/` occur. What repeats is possessive
# (`++`), or a header of many spaces would take time by the square of its length.
_ELEMENT = re.compile(
    rf"(?:(?P<scheme>{_WORD}+)(?:[ \t]++|(?=,|$)))?"
    rf'(?:(?P<key>{_WORD}+)[ \t]*+=[ \t]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s",]*+))'
    r"|(?P<token68>[A-Za-z0-9._~+/-]++=*+))?"
    r"[ \t]*+(?:,[ \t,]*+|$)"
)
_ESCAPED = re.compile(r"\\(.)")


class MalformedChallenge(ValueError):
    """A header that is no list of challenges: a comma is missing, a quote is not closed."""


class Challenge(NamedTuple):
    """One way to authenticate that a server offers. `scheme` and the names of parameters are in lower case."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Every challenge in the values of a response's WWW-Authenticate headers, in their order. O(characters).

    Raises:
        MalformedChallenge: one of them does not follow the grammar.
    """
    return tuple(challenge for header in headers for challenge in _parse_header(header.strip(" \t,")))


def _parse_header(header: str) -> list[Challenge]:
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(header):
        element = _ELEMENT.match(header, position)
        if element is None or not (element["scheme"] or (found and element["key"])):
            raise MalformedChallenge(f"malformed challenge at character {position}")
        if element["scheme"]:
            found.append((element["scheme"].lower(), {}))
        if element["key"]:
            found[-1][1][element["key"].lower()] = _value_of(element)
        position = element.end()
    return [Challenge(scheme, parameters) for scheme, parameters in found]


def _value_of(element: re.Match[str]) -> str:
    return element["plain"] if element["quoted"] is None else _ESCAPED.sub(r"\1", element["quoted"])
