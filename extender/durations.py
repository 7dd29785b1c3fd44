"""Durations as Go's time.ParseDuration reads them (https://pkg.go.dev/time#ParseDuration), and as Go writes them:
300ms, -1.5h, 2h45m.

This module is pure. The caller decides whether a duration may be negative or zero.
"""

import re

_UNIT_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek letter mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]+)")
_MOST_NANOSECONDS = 2**63 - 1  # some 292 years: a Duration is an int64


def parse_seconds(text: str) -> float:
    """Returns the seconds of a duration: numbers with units such as `1h30m`, `-1.5s` or `+.5ms`, or `0` alone.

    A fraction of a nanosecond is dropped, as in Go.

    Raises:
        ValueError: `text` is not a duration, or is longer than Go can hold. The message does not quote it.
    """
    sign, unsigned = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if unsigned == "0":
        return 0.0
    nanoseconds, position = 0, 0
    while part := _PART.match(unsigned, position):
        nanoseconds += _nanoseconds(*part.groups(""))
        position = part.end()
    if position == 0 or position < len(unsigned):
        raise ValueError("no duration such as 300ms or 1h30m")
    if nanoseconds > _MOST_NANOSECONDS + (sign < 0):
        raise ValueError("a duration of more than 292 years")
    return sign * nanoseconds / 1_000_000_000


def _nanoseconds(whole: str, fraction: str, unit: str) -> int:
    """Returns the nanoseconds of one number with its unit. Raises ValueError."""
    if not (whole or fraction) or unit not in _UNIT_NANOSECONDS:
        raise ValueError("no duration such as 300ms or 1h30m")
    size, digits = _UNIT_NANOSECONDS[unit], fraction[:19]
    if int(digits or 0) > 2**63:
        digits = digits[:18]
    # As in Go, the fraction is a float of as many digits as fit into an int64: a third of an hour written with nineteen
    # digits is twenty minutes.
    return int(whole or 0) * size + int(int(digits or 0) * (size / 10.0 ** len(digits)))


def duration_text(seconds: float) -> str:
    """The seconds as Go writes a duration, without fractions of a second: `45s`, `2m0s`, `26h5m0s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"
