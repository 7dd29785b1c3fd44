"""Durations as Go reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.durations import duration_text, parse_seconds

MOST_NANOSECONDS = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("+0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("5s", 5.0),
        ("30s", 30.0),
        ("1999s", 1999.0),
        ("+5s", 5.0),
        ("-5s", -5.0),
        ("5.0s", 5.0),
        ("7.2s", 7.2),
        ("5.s", 5.0),
        (".5s", 0.5),
        ("-.5s", -0.5),
        ("1.006s", 1.006),
        ("40.00200s", 40.002),
        ("20ns", 2e-8),
        ("25us", 2.5e-5),
        ("40\u00b5s", 4e-5),
        ("40\u03bcs", 4e-5),
        ("50ms", 0.05),
        ("10m", 600.0),
        ("12h", 43_200.0),
        ("2h45m", 9900.0),
        ("3m20.5s", 200.5),
        ("20.5s3m", 200.5),
        ("-1m2.5s", -62.5),
        ("2h3m4s5ms6us7ns", 7384.005006007),
        ("1s1s", 2.0),
        ("1.9ns", 1e-9),
        ("0.3333333333333333333h", 1200.0),
        ("9007199254740993ns", 9007199.254740993),
        ("2562047h47m16.854775807s", MOST_NANOSECONDS / 1e9),
        ("-2562047h47m16.854775808s", -(MOST_NANOSECONDS + 1) / 1e9),
        ("0." + "9" * 10_000 + "s", 1.0),
    ],
)
def test_durations_that_go_reads(text: str, seconds: float) -> None:
    """Signs, fractions, every unit, several of them in any order, and the longest there are."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "-",
        "+",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "--5s",
        "+-5s",
        "- 5s",
        " 5s",
        "5s ",
        "5 s",
        "5s\n",
        "1h 30m",
        "00",
        "0.0",
        "1d",
        "5S",
        "5sec",
        "1.2.3s",
        "1e3s",
        "1,5s",
        "1h30",
        "s5",
        "٣s",
        "5µ",
        "\xff",
        "9223372036854775808ns",
        "-9223372036854775809ns",
        "9223372036854775.808us",
        "2562048h",
        "2562047h47m16.854775808s",
        "9" * 10_000 + "s",
    ],
)
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
    """`number` / `size`, a power of ten, exactly."""
    whole, remainder = divmod(number, size)
    digits = str(remainder).zfill(len(str(size)) - 1).rstrip("0") if remainder else ""
    return f"{whole}.{digits}" if digits else str(whole)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (7_050, "7.05\u00b5s"),
        (20_000_001, "20.000001ms"),
        (9_400_000_000, "9.4s"),
        (600_000_000_000, "10m0s"),
        (2 * 3_600_000_000_000 + 7_090_000_000, "2h0m7.09s"),
        (-MOST_NANOSECONDS - 1, "-2562047h47m16.854775808s"),
    ],
)
def test_the_writer_of_the_round_trip_writes_as_go_does(nanoseconds: int, text: str) -> None:
    """A unit below the second where that is enough, and no zeros at the end."""
    assert written_by_go(nanoseconds) == text


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
