"""Makes text of others fit to be shown: it moves no cursor, hides nothing, and ends no line."""

_NAMED = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def printable(text: str) -> str:
    r"""The text with each character escaped that is not shown as itself: `\n`, `\u001b`, `\u202e`.

    These are control characters, separators of lines, characters that turn the direction of writing or have no width,
    and surrogates, which no stream takes. What is JSON stays JSON.
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return _NAMED.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
