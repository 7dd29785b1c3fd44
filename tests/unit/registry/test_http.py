"""The parts of an exchange that need no network: waits, addresses and refusals."""

import asyncio
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from yarl import URL

from extender.errors import RegistryUnavailable
from extender.registry.capped_connection import BodiesUnderWay, CappedConnection
from extender.registry.http import MOST_SAID, read_refusal, read_retry_after, resolve_url
from testbed.eventually import eventually

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("120", 120.0, id="seconds"),
        pytest.param(" 7 ", 7.0, id="space-about"),
        pytest.param("1.5", 1.5, id="fraction"),
        pytest.param("0", 1.0, id="zero"),
        pytest.param("86400", 3600.0, id="too-long"),
        pytest.param(str(int(NOW) + 90), 90.0, id="point-in-seconds"),
        pytest.param(str((int(NOW) + 90) * 1000), 90.0, id="point-in-milliseconds"),
        pytest.param("1746136938", 1.0, id="point-gone-by"),
        pytest.param(str(int(NOW) + 86400), 3600.0, id="point-far-away"),
        pytest.param("9" * 14, None, id="no-point"),
        pytest.param("Sun Mar  1 12:01:00 2026", 60.0, id="date-of-asctime"),
        pytest.param("Sun, 01 Mar 2026 12:01:00 UTC", 60.0, id="date-in-utc"),
        pytest.param("Sun, 01 Mar 2026 12:01:00 GMT", 60.0, id="date"),
        pytest.param("Sun, 01 Mar 2026 13:01:00 +0100", 60.0, id="date-elsewhere"),
        pytest.param("Sun, 01 Mar 2020 12:00:00 GMT", 1.0, id="date-gone-by"),
        pytest.param("Fri, 01 Mar 2999 12:00:00 GMT", 3600.0, id="date-far-away"),
        pytest.param("", None, id="missing"),
        pytest.param("soon", None, id="garbage"),
        pytest.param("nan", None, id="not-a-number"),
        pytest.param("Sun, 99 Foo 2026 99:99:99 GMT", None, id="no-such-date"),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    """Seconds or a date, kept between a second and an hour; anything else names no time."""
    assert read_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("base", "location", "target"),
    [
        pytest.param("https://a/v2/x", "https://b/y?z=1", "https://b/y?z=1", id="elsewhere"),
        pytest.param("https://a/v2/x", "/token", "https://a/token", id="absolute-path"),
        pytest.param("https://a/v2/x", "y", "https://a/v2/y", id="relative-path"),
        pytest.param("https://a/v2/x", "//b/y", "https://b/y", id="same-scheme"),
        pytest.param("http://a/v2/x", "https://b/y", "https://b/y", id="to-https"),
        pytest.param("http://a/v2/x", "http://b/y", "http://b/y", id="stays-http"),
        pytest.param("https://a/x", "https://b/y?sig=a%2Bb%3D", "https://b/y?sig=a%2Bb%3D", id="signature-untouched"),
        pytest.param("https://a/x", "https://b/%2f%3A/?a=%2F:|;&b", "https://b/%2f%3A/?a=%2F:|;&b", id="to-the-byte"),
        pytest.param("https://a/v2/%2F/x", "y%2fz?a=%3a|", "https://a/v2/%2F/y%2fz?a=%3a|", id="relative-to-the-byte"),
        pytest.param("https://a/v2/x?old", "?a=%2F", "https://a/v2/x?a=%2F", id="query-alone"),
        pytest.param("https://a/x", "HTTPS://B/Y?Z=%2F#part", "https://b/Y?Z=%2F", id="host-in-capitals"),
        pytest.param("https://a/x", "https://b/a \u00e9?\u00e9 c", "https://b/a%20%C3%A9?%C3%A9%20c", id="unsendable"),
        pytest.param("https://a/x", "https://b?a=%2F", "https://b/?a=%2F", id="no-path"),
    ],
)
def test_where_an_address_leads(base: str, location: str, target: str) -> None:
    """Relative addresses are resolved, signatures in queries survive."""
    assert str(resolve_url(URL(base), location)) == target


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        pytest.param("http://b/y", "from https to http", id="downgrade"),
        pytest.param("", "an address that is none", id="missing"),
        pytest.param("ftp://b/y", "an address that is none", id="other-scheme"),
        pytest.param("https://:80/y", "an address that is none", id="no-host"),
        pytest.param("https://b:99999/y", "an address that is none", id="no-such-port"),
        pytest.param("https://[]@", "an address that is none", id="empty-brackets"),
        pytest.param(f"https://{'b' * 254}/y", "an address that is none", id="longer-than-any-name"),
        pytest.param("https://b\0b/y", "an address that is none", id="control-character"),
    ],
)
def test_address_that_leads_nowhere_is_the_hosts_fault(location: str, complaint: str) -> None:
    """The message names the host that sent it, and nothing of what it sent."""
    with pytest.raises(RegistryUnavailable, match=f"^a points .*{complaint}$") as caught:
        resolve_url(URL("https://a/v2/x"), location)
    assert not location or location not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"errors":[{"code":"DENIED","message":"not signed"}]}', "not signed", id="message"),
        pytest.param(b'{"errors":[{"code":"TOOMANY"}]}', "TOOMANY", id="code-alone"),
        pytest.param(b'{"errors":[{"message":"a","detail":{"x":[1]}}],"more":1}', "a", id="unknown-fields"),
        pytest.param(b'{"errors":[{"message":" a\\n\\tb\\u00a0 c "}]}', "a b c", id="one-line"),
        pytest.param(b'{"errors":[{"message":"a\\u001b[31mb\\u202ec"}]}', "a?[31mb?c", id="nothing-for-a-terminal"),
        pytest.param(b'{"errors":[{"message":"\\u00fc\\u4e2d"}]}', "ü中", id="other-languages"),
        pytest.param(b'{"errors":[{"message":"\\ud800a"}]}', "\ufffda", id="half-a-character"),
        pytest.param(b'{"errors":[{"code":"A","message":null,"detail":"\\ud800"}]}', "A", id="null"),
        pytest.param(b'{"errors":[null,{"message":"a"}]}', "", id="null-first"),
        pytest.param(b'{"errors":null}', "", id="no-errors"),
        pytest.param(b"\xff", "", id="no-utf-8"),
        pytest.param(b"<html>", "", id="a-page"),
        pytest.param(b"", "", id="empty"),
        pytest.param(b'{"x":' + b"[" * 8000, "", id="deep"),
    ],
)
def test_what_a_registry_says(body: bytes, said: str) -> None:
    """A body that is no error of the distribution-spec says nothing."""
    assert read_refusal(body) == said


def test_oldest_body_is_given_up_while_all_are_too_much_together() -> None:
    """Honest ones take little time; one that is complete does not count."""
    bodies = BodiesUnderWay(10)
    whole, oldest, newest = (Mock(spec=CappedConnection) for _ in range(3))
    bodies.note(whole, 9)
    bodies.forget(whole)
    bodies.note(oldest, 5)
    bodies.note(newest, 5)
    assert not oldest.give_up.called
    bodies.note(newest, 6)
    assert [each.give_up.call_count for each in (whole, oldest, newest)] == [0, 1, 0]


class Transport(asyncio.Transport):
    """Knows whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.reads = False


async def test_what_comes_faster_than_it_is_read_is_not_taken_for_framing() -> None:
    """A parser that stops in the middle of what came says nothing about the chunks behind it."""
    connection, transport = CappedConnection(asyncio.get_running_loop(), BodiesUnderWay()), Transport()
    connection.connection_made(transport)
    connection.set_response_params(read_until_eof=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    _, body = await connection.read()
    reading = asyncio.create_task(body.read())
    raw, size = (b"400\r\n" + bytes(1024) + b"\r\n") * 3000 + b"0\r\n\r\n", 900_000
    for start in range(0, len(raw), size):
        await eventually(lambda: transport.reads)
        connection.data_received(raw[start : start + size])
    assert len(await reading) == 3000 * 1024
    assert connection.exception() is None


def test_long_text_is_cut() -> None:
    said = read_refusal(b'{"errors":[{"message":"' + b"word " * 500 + b'"}]}')
    assert (len(said) <= MOST_SAID, said[:10], said[-1]) == (True, "word word ", "…")
