"""Rewrites of paths by regular expressions, by which k3s' containerd changes repositories for mirrors.

Replaces as Go does. The expressions are the operator's own, and Python's engine tries all ways to match, where Go's
takes one pass: what has not ended in a tenth of a second is given up.
"""

import contextlib
import re
import signal
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import NamedTuple

from extender.errors import AddressRefused, ConfigError

_GROUP = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")


_MOST_SECONDS = 0.1  # of the processor's; a usual one takes microseconds


class _TooSlow(Exception):
    """An expression has taken too long. The engine looks for signals while it matches."""


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
    """Returns the path after the first rewrite that changes it. Nodes take them in an order that is random.

    To be called in the main thread.

    Raises:
        AddressRefused: one takes too long, so that it is not known where nodes ask.
    """
    try:
        with _limited():
            return next((changed for rewrite in rewrites if (changed := rewrite.apply(path)) != path), path)
    except _TooSlow:
        raise AddressRefused(f"the rewrites in the nodes' files take too long on {path}") from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _TooSlow


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
