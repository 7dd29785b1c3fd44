"""Parses WWW-Authenticate headers by the grammar of RFC 9110 §11.6.1.

`auth` chooses the challenge to answer, and answers it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# One list element: a scheme, a parameter, or a scheme with its first parameter (or its token68, as in Negotiate).
# An unquoted value may have characters that a token may not, since `realm=https://…` and `realm=/` occur. Quantifiers
# are possessive (`++`): otherwise a header of many spaces would take time quadratic in its length.
_ELEMENT = re.compile(
    rf"(?:(?P<scheme>{_WORD}+)(?:[ \t]++(?!=)|(?=,|$)))?"
    rf'(?:(?P<key>{_WORD}+)[ \t]*+=[ \t]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s",]*+))'
    r"|(?P<token68>[A-Za-z0-9._~+/-]++=*+))?"
    r"[ \t]*+"
)
_NEXT = re.compile(r",[ \t,]*+|$")
_ESCAPED = re.compile(r"\\(.)")


class MalformedChallenge(ValueError):
    """No header has a challenge that can be read."""


class Challenge(NamedTuple):
    """One way to authenticate that a server offers. `scheme` and the names of parameters are in lower case."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Returns every challenge in the values of a response's WWW-Authenticate headers, in order. O(characters).

    Of a value that does not follow the grammar it is what stands before that, as in the runtimes.

    Raises:
        MalformedChallenge: there is nothing before that, in no value.
    """
    values = [header.strip(" \t,") for header in headers]
    challenges = tuple(challenge for value in values for challenge in _parse_header(value))
    if not challenges and any(values):
        raise MalformedChallenge("no challenge")
    return challenges


def _parse_header(header: str) -> list[Challenge]:
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(header):
        element = _ELEMENT.match(header, position)
        if element is None or not (element["scheme"] or (found and element["key"])):
            break
        if element["scheme"]:
            found.append((element["scheme"].lower(), {}))
        if element["key"]:
            found[-1][1][element["key"].lower()] = _value_of(element)
        behind = _NEXT.match(header, element.end())
        if behind is None:
            break
        position = behind.end()
    return [Challenge(scheme, parameters) for scheme, parameters in found]


def _value_of(element: re.Match[str]) -> str:
    return element["plain"] if element["quoted"] is None else _ESCAPED.sub(r"\1", element["quoted"])
