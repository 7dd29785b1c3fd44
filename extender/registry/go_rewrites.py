"""Rewrites of paths by regular expressions, by which k3s' containerd changes repositories for mirrors.

Replaces as Go does. The expressions are the operator's own and Python's: one that takes for ever on a path of 255
characters ends the process that matches it, which is started again.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from extender.errors import ConfigError

_GROUP = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")


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
    """Returns the rewrites, in order. Raises ConfigError if one is no expression."""
    return tuple(Rewrite(_compile(pattern), replacement) for pattern, replacement in rewrites.items())


def rewritten(path: str, rewrites: tuple[Rewrite, ...]) -> str:
    """Returns the path after the first rewrite that changes it. Nodes take them in an order that is random."""
    return next((changed for rewrite in rewrites if (changed := rewrite.apply(path)) != path), path)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ConfigError(f"{pattern!r} is no regular expression that can be used: {exc}") from exc


def _text_of(named: re.Match[str], match: re.Match[str]) -> str:
    """What a `$` of the replacement stands for: a group that there is not is empty, as in Go."""
    if named[0] == "$$":
        return "$"
    name = named[1] or named[2]
    try:
        return match[int(name) if name.isdigit() else name] or ""
    except (IndexError, ValueError):
        return ""
