"""Reads why a registry refuses an image, from the body of its answer.

The registry's owner writes it, and the authors of pods read it.

Source: distribution-spec, "Error Codes". It calls the message optional, and lets codes other than its own occur.
"""

import msgspec

from extender.go_json import GoDecoder, InvalidJson

BODY_BYTES = 8 * 1024
"""What is read of a refusal. Registries answer some hundred bytes; a body that is longer says nothing."""

MOST_CHARACTERS = 112
"""Of what a registry says. With the words about it, it fits what `placement.reasons` shows of a cause."""


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Body(msgspec.Struct):
    errors: list[_Error] = []


_DECODER = GoDecoder(_Body, most_values=1_000)


def read_refusal(body: bytes) -> str:
    """The message of the first error, or its code if it has none, as one printable line of `MOST_CHARACTERS` at most.

    Empty if the body is no error of the distribution-spec, or says nothing.
    """
    try:
        errors = _DECODER.decode(body).errors
    except InvalidJson:
        return ""
    if not errors:
        return ""
    line = " ".join((errors[0].message or errors[0].code).split())
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 1].rstrip()}…"
    return "".join(letter if letter.isprintable() else "?" for letter in line)
