"""Rewrites of paths by regular expressions as Go means them, by which k3s' containerd changes repositories for mirrors.

Go's expressions take time in proportion to the text. Python's may take for ever, so that those which could are refused,
as are those that only one of the two languages has.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_MOST_REPEATS = 2  # without a bound, in one expression: 255 characters then take a second at most
_GROUP = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")
_ONLY_PYTHON = re.compile(r"\(\?(?![:P<ims-])|\(\?P[=>]|\(\?<[=!]|\(\?[aLux]|[*+?}]\+|\\[1-9ZGg]")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)|[*+]|\{[0-9]*,?[0-9]*\}|.", re.DOTALL)


class InvalidRewrite(ValueError):
    """An expression that cannot be used; the message says why."""


class Rewrite(NamedTuple):
    """An expression and what its matches become."""

    pattern: re.Pattern[str]
    replacement: str

    def apply(self, text: str) -> str:
        """Returns the text with all matches replaced, as by `Regexp.ReplaceAllString`."""
        return "".join(self._parts(text))

    def _parts(self, text: str) -> Iterator[str]:
        end, last = 0, -1
        for match in self.pattern.finditer(text):
            if match.end() == match.start() == last:
                continue  # Go ignores an empty match right behind another
            yield text[end : match.start()]
            yield _GROUP.sub(lambda named: _text_of(named, match), self.replacement)  # noqa: B023 - used at once
            end = last = match.end()
        yield text[end:]


def read_rewrites(rewrites: Mapping[str, str]) -> tuple[Rewrite, ...]:
    """Returns the rewrites, in order. Raises InvalidRewrite."""
    return tuple(Rewrite(_compile(pattern), replacement) for pattern, replacement in rewrites.items())


def rewritten(path: str, rewrites: tuple[Rewrite, ...]) -> str:
    """Returns the path after the first rewrite that changes it. Nodes take them in an order that is random."""
    return next((changed for rewrite in rewrites if (changed := rewrite.apply(path)) != path), path)


def _compile(pattern: str) -> re.Pattern[str]:
    if found := _ONLY_PYTHON.search(pattern):
        raise InvalidRewrite(f"{pattern!r}: Go has no {found[0]!r}")
    _check_repeats(pattern)
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as exc:
        raise InvalidRewrite(f"{pattern!r} is no regular expression that can be used: {exc}") from exc


def _check_repeats(pattern: str) -> None:
    """Raises InvalidRewrite if matching could take more than time in proportion to the cube of the text."""
    repeats, groups, closed = 0, [False], False  # of each open group, whether something in it repeats
    for piece in _PIECE.findall(pattern):
        is_repeat = piece in "*+" or (piece.startswith("{") and len(piece) > 1)
        if is_repeat:
            repeats += piece in "*+" or piece.endswith(",}")
            if closed:
                raise InvalidRewrite(f"{pattern!r}: a group that repeats has something in it that repeats or varies")
            groups[-1] = True
        closed = False
        if piece == "(":
            groups.append(False)
        elif piece == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
        elif piece in "?|":
            groups[-1] = True
    if repeats > _MOST_REPEATS:
        raise InvalidRewrite(f"{pattern!r}: it has more than {_MOST_REPEATS} * or +")


def _text_of(named: re.Match[str], match: re.Match[str]) -> str:
    """What a `$` of the replacement stands for: a group that there is not is empty, as in Go."""
    if named[0] == "$$":
        return "$"
    name = named[1] or named[2]
    try:
        return match[int(name) if name.isdigit() else name] or ""
    except (IndexError, ValueError):
        return ""
