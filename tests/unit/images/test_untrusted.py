"""Text from outside in messages, and the ways in which bytes are no document."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.errors import InvalidManifest
from extender.images.untrusted import decode_json, document_decoder, quote


class Named(msgspec.Struct):
    """A document with one field that is read."""

    name: str | None = None


DECODER = document_decoder(Named)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("linux", "'linux'", id="plain"),
        pytest.param("a\nb\x1b[0m", r"'a\nb\x1b[0m'", id="line breaks and terminal escapes"),
        pytest.param("\u202eevil", r"'\u202eevil'", id="text that runs backwards"),
        pytest.param("\ud800", r"'\ud800'", id="half a surrogate pair"),
        pytest.param("a" * 98, "'" + "a" * 98 + "'", id="as long as fits"),
        pytest.param("a" * 99, "'" + "a" * 99 + "…", id="too long"),
    ],
)
def test_quoted_text_is_escaped_and_cut(text: str, shown: str) -> None:
    assert quote(text) == shown


@given(st.text())
def test_any_quoted_text_is_short_and_printable(text: str) -> None:
    assert quote(text).isprintable()
    assert len(quote(text)) <= 101


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"<!DOCTYPE html><html></html>", "malformed", id="a login page"),
        pytest.param(b'{"name":"a"', "truncated", id="cut off"),
        pytest.param(b'{"name":"a"} {}', "trailing", id="two documents"),
        pytest.param(b'\xef\xbb\xbf{"name":"a"}', "malformed", id="byte order mark"),
        pytest.param(b"[]", "Expected `object`", id="an array"),
        pytest.param(b'{"name":1}', "Expected `str", id="wrong type"),
        pytest.param(b'{"other":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "too deep", id="deep in a field not read"),
        pytest.param(b'{"other":[' + b"[]," * 100_000 + b"[]]}", "more than 100000 values", id="many values"),
    ],
)
def test_bytes_that_are_no_document_are_an_invalid_manifest(body: bytes, why: str) -> None:
    with pytest.raises(InvalidManifest, match=why):
        decode_json(DECODER, body)
