"""Durations as Go reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.durations import duration_text, parse_seconds

MOST_NANOSECONDS = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("-0", 0.0), ("0s", 0.0), ("5s", 5.0), ("-5s", -5.0), ("7.2s", 7.2), ("5.s", 5.0), (".5s", 0.5),
        ("-.5s", -0.5), ("40\u00b5s", 4e-5), ("40\u03bcs", 4e-5), ("10m", 600.0), ("20.5s3m", 200.5), ("1s1s", 2.0),
        ("-1m2.5s", -62.5), ("2h3m4s5ms6us7ns", 7384.005006007), ("1.9ns", 1e-9), ("0.3333333333333333333h", 1200.0),
        ("9007199254740993ns", 9007199.254740993), ("0." + "9" * 10_000 + "s", 1.0),
        ("2562047h47m16.854775807s", MOST_NANOSECONDS / 1e9),
        ("-2562047h47m16.854775808s", -(MOST_NANOSECONDS + 1) / 1e9),
    ],
)  # fmt: skip
def test_durations_that_go_reads(text: str, seconds: float) -> None:
    """Signs, fractions, every unit, several of them in any order, and the longest there are."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "3", "+", "s", ".", "-.", "--5s", "- 5s", " 5s", "5s\n", "0.0", "1d", "5S", "1.2.3s", "1e3s", "1h30", "٣s",
     "5µ", "9223372036854775808ns", "2562047h47m16.854775808s", "9" * 10_000 + "s"],
)  # fmt: skip
def test_what_is_no_duration(text: str) -> None:
    """What Go refuses is refused, and nothing of it stands in the message."""
    with pytest.raises(ValueError, match=r"^(no duration|a duration of more|Exceeds the limit)"):
        parse_seconds(text)


def written_by_go(nanoseconds: int) -> str:
    """As Duration.String has it: the largest unit below a second, else hours, minutes and seconds."""
    if nanoseconds < 0:
        return f"-{written_by_go(-nanoseconds)}"
    for unit, size in (("ns", 1), ("\u00b5s", 1_000), ("ms", 1_000_000)):
        if 0 < nanoseconds < size * 1_000:
            return f"{decimal(nanoseconds, size)}{unit}"
    minutes, below = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{decimal(below, 10**9)}s"


def decimal(number: int, size: int) -> str:
    whole, remainder = divmod(number, size)
    digits = str(remainder).zfill(len(str(size)) - 1).rstrip("0") if remainder else ""
    return f"{whole}.{digits}" if digits else str(whole)


@given(st.integers(-MOST_NANOSECONDS - 1, MOST_NANOSECONDS))
def test_what_go_writes_is_read_to_the_nanosecond(nanoseconds: int) -> None:
    """As exactly as a float holds it."""
    assert parse_seconds(written_by_go(nanoseconds)) == nanoseconds / 1_000_000_000


@given(st.text("0123456789.+-hmsnuµμ \n", max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    """No other error comes out, whatever comes in."""
    try:
        parse_seconds(text)
    except ValueError:
        return
    assert text == "0" or text.lstrip("+-") == "0" or text[-1] in "smh"


@given(st.floats(0, 1e8))
def test_ages_are_written_as_go_does(seconds: float) -> None:
    """In whole seconds."""
    assert duration_text(seconds) == written_by_go(round(seconds) * 1_000_000_000)
