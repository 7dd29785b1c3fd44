"""Heads of answers as Go's client reads them: each row was asked of net/http (Go 1.26)."""

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.registry.capped_connection import (
    BodiesUnderWay,
    CappedConnection,
    MalformedHead,
    end_of_head,
    read_answer_head,
)

ENDS = b"Content-Length: 7\r\n"


def written(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((first, *lines, b"", b""))


@pytest.mark.parametrize(
    ("head", "canonical"),
    [
        pytest.param(written(b"A: b"), b"HTTP/1.1 200 \r\nA: b\r\n\r\n", id="usual"),
        pytest.param(b"HTTP/1.1 200 OK\nA: b\n\n", b"HTTP/1.1 200 \r\nA: b\r\n\r\n", id="line-feeds"),
        pytest.param(written(first=b"HTTP/1.1 200"), b"HTTP/1.1 200 \r\n\r\n", id="no-reason"),
        pytest.param(written(first=b"HTTP/1.1   200 OK"), b"HTTP/1.1 200 \r\n\r\n", id="spaces"),
        pytest.param(written(first=b"HTTP/1.0 200 OK"), b"HTTP/1.0 200 \r\n\r\n", id="older-version"),
        pytest.param(written(first=b"HTTP/1.1 200 " + b"x" * 9000), b"HTTP/1.1 200 \r\n\r\n", id="long-reason"),
        pytest.param(written(b"A:b", b"C: \t d \t"), b"HTTP/1.1 200 \r\nA: b\r\nC: d\r\n\r\n", id="white-space"),
        pytest.param(written(b"A: b", b"  c", b"\td"), b"HTTP/1.1 200 \r\nA: b c d\r\n\r\n", id="folded"),
        pytest.param(written(b"A : b", b"C D: e"), b"HTTP/1.1 200 \r\n\r\n", id="space-in-a-name"),
        pytest.param(written(b"A: \xc3\xa9\xff\t"), b"HTTP/1.1 200 \r\nA: \xc3\xa9\xff\r\n\r\n", id="no-ascii"),
        pytest.param(
            written(b"content-LENGTH: 7", b"Content-Length:  7 "),
            b"HTTP/1.1 200 \r\nContent-Length: 7\r\n\r\n",
            id="length-twice",
        ),
        pytest.param(
            written(b"Content-Length: 9", b"Transfer-Encoding: Chunked"),
            b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
            id="length-and-chunks",
        ),
    ],
)
def test_head_that_nodes_read_is_read(head: bytes, canonical: bytes) -> None:
    """In one form, whatever the server's."""
    assert read_answer_head(head).canonical == canonical
    assert end_of_head(head + b"body") == len(head)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"\r\n\r\n", id="empty-line-first"),
        pytest.param(written(first=b"http/1.1 200 OK"), id="lower-case"),
        pytest.param(written(first=b"HTTP/1.1 20 OK"), id="short-status"),
        pytest.param(written(b" A: b"), id="nothing-to-continue"),
        pytest.param(written(b"A"), id="no-colon"),
        pytest.param(written(b": a"), id="no-name"),
        pytest.param(written(b"A(1): b"), id="no-token"),
        pytest.param(written(b"A: b\rc"), id="carriage-return"),
        pytest.param(written(b"Content-Length: 7", b"Content-Length: 8"), id="lengths-differ"),
        pytest.param(written(b"Content-Length: 7, 7"), id="list-of-lengths"),
        pytest.param(written(b"Content-Length: +7"), id="sign"),
        pytest.param(written(b"Content-Length: 9223372036854775808"), id="beyond-measure"),
        pytest.param(written(b"Content-Length: 7", b"Transfer-Encoding: identity"), id="identity"),
        pytest.param(written(b"Transfer-Encoding: gzip, chunked"), id="encoded-chunks"),
    ],
)
def test_head_that_nodes_do_not_read_is_refused(head: bytes) -> None:
    """So that nothing is known of an image that no node can pull."""
    with pytest.raises(MalformedHead):
        read_answer_head(head)


@given(st.binary(max_size=200) | st.text("HTP/1.20 \r\n\tA:b,", max_size=80).map(str.encode))
def test_any_head_is_read_once_for_all_or_refused(lines: bytes) -> None:
    """What is written in one form is read back as the same."""
    try:
        head = read_answer_head(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\n")
    except MalformedHead:
        return
    assert read_answer_head(head.canonical) == head


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
