"""Whatever bytes come: the service answers what aiohttp alone answers, and no request that aiohttp does not read."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.target import close_loop
from tests.fuzz.targets.http import PATH, connections

USUAL = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nwait" % PATH.encode()
START = USUAL.partition(b"Content-Length")[0]
ROWS = {
    "lengths that differ": START + b"Content-Length: 4\r\nContent-Length: 9\r\n\r\nwait" + USUAL,
    "lengths in one field": START + b"Content-Length: 4, 4\r\n\r\nwait",
    "length and chunks": START + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + USUAL,
    "chunks and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + USUAL,
    "chunks": START + b"Transfer-Encoding: chunked\r\n\r\n4\r\nwait\r\n0\r\n\r\n" + USUAL,
    "odd encoding": START + b"Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\nwait",
    "space before the colon": START + b"Content-Length : 4\r\n\r\nwait",
    "signed length": START + b"Content-Length: +4\r\n\r\nwait",
    "length with a tab": START + b"Content-Length:\t4\r\n\r\nwait",
    "length of other digits": START + "Content-Length: ٤\r\n\r\nwait".encode(),
    "folded field": START + b"Accept: x\r\n Content-Length: 9\r\nContent-Length: 4\r\n\r\nwait",
    "folded length": START + b"Content-Length:\r\n 4\r\n\r\nwait",
    "expectation": START + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\nwait",
    "upgrade": START + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nwait" + USUAL,
    "bytes behind a body": USUAL + b"GET / HTT",
    "requests together": USUAL * 3,
    "empty lines first": b"\r\n\r\n" + USUAL,
    "bare line feeds": USUAL.replace(b"\r\n", b"\n"),
    "a bare line feed": START + b"Accept: x\nContent-Length: 9\r\nContent-Length: 4\r\n\r\nwait",
    "a bare return": START + b"Accept: x\rContent-Length: 9\r\nContent-Length: 4\r\n\r\nwait",
    "nothing in a name": START + b": x\r\nContent-Length: 4\r\n\r\nwait",
    "a zero byte": START + b"Accept: \x00\r\nContent-Length: 4\r\n\r\nwait",
    "huge head": START + b"User-Agent: %b\r\nContent-Length: 4\r\n\r\nwait" % (b"x" * 9000),
    "many fields": START + b"Accept: x\r\n" * 500 + b"\r\n",
    "HTTP/1.0": USUAL.replace(b"HTTP/1.1", b"HTTP/1.0") + USUAL,
    "HTTP/1.2": USUAL.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "lower-case method": USUAL.replace(b"POST", b"post"),
    "absolute form": USUAL.replace(PATH.encode(), b"http://x" + PATH.encode()),
    "authority form": USUAL.replace(b"POST " + PATH.encode(), b"CONNECT x:80"),
    "escaped path": USUAL.replace(b"filter", b"%66ilter"),
    "dots in the path": USUAL.replace(b"filter", b"x/../filter"),
    "fragment": USUAL.replace(b"filter", b"filter#x"),
    "host of another kind": USUAL.replace(b"Host: x", b"Host: a b@c/d"),
    "no host": USUAL.replace(b"Host: x\r\n", b""),
    "length over the limit": START + b"Content-Length: 301\r\n\r\n" + b"x" * 301,
    "hung up": USUAL[:-1],
}


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    yield
    close_loop()


@pytest.mark.parametrize("row", ROWS)
def test_bytes_of_every_kind_are_answered_as_aiohttp_answers_them(row: str) -> None:
    """In one piece, and in pieces of several sizes, each read alone or together; what is long not byte by byte."""
    for length, settled in product((0, 31, 63) if len(ROWS[row]) > 2000 else (0, 1, 2, 3, 7, 19, 31, 63), (0, 1)):
        connections(bytes([length << 2 | settled]) + ROWS[row])


FIELDS = st.sampled_from(
    (
        b"Host: x", b"host: y", b"Content-Length: 4", b"Content-Length:4", b"content-length: 04", b"Content-Length: 0",
        b"Content-Length: 40", b"Content-Length: 4 ", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity",
        b"Transfer-Encoding:\tchunked", b"Connection: close", b"Connection: keep-alive", b"Connection: content-length",
        b"Expect: 100-continue", b"Upgrade: h2c", b"Content-Encoding: gzip", b"User-Agent: a", b"Accept: */*",
        b" folded", b"X-Other: 1", b"Trailer: x", b"Accept: \xff", b"bad", b"",
    )
)  # fmt: skip
REQUESTS = st.builds(
    lambda method, path, version, fields, ending, body: (
        ending.join((b" ".join((method, path, version)), *fields, b"", b"")) + body
    ),
    st.sampled_from((b"POST", b"POST", b"POST", b"GET", b"post", b"CONNECT", b"PRI")),
    st.sampled_from((b"/scheduler/filter", b"/scheduler/filter?timeout=1s", b"/", b"http://x/scheduler/filter", b"*")),
    st.sampled_from((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1")),
    st.lists(FIELDS, max_size=5) | st.just([b"Host: x", b"Content-Length: 4"]),
    st.sampled_from((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")),
    st.sampled_from(
        (b"", b"wait", b"body", b"xxxx", b"4\r\nwait\r\n0\r\n\r\n", b"0\r\n\r\n", b"4;x=y\r\nwait\r\n0\r\nA: b\r\n\r\n")
    ),
)  # fmt: skip


@given(st.lists(REQUESTS, min_size=1, max_size=4), st.integers(0, 255))
def test_requests_are_answered_as_aiohttp_answers_them(requests: list[bytes], flags: int) -> None:
    """Whatever follows whatever, in any pieces."""
    connections(bytes([flags]) + b"".join(requests))
