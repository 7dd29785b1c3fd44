"""Why a registry refuses an image: one line, whatever the registry writes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.registry.refusals import MOST_CHARACTERS, read_refusal


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"errors":[{"code":"DENIED","message":"not signed"}]}', "not signed", id="message"),
        pytest.param(b'{"errors":[{"code":"TOOMANY"}]}', "TOOMANY", id="code-alone"),
        pytest.param(b'{"errors":[{"code":"A","message":"a"},{"code":"B","message":"b"}]}', "a", id="first-of-two"),
        pytest.param(b'{"errors":[{"message":"a","detail":{"x":[1]}}],"more":1}', "a", id="unknown-fields"),
        pytest.param(b'{"errors":[{"message":" a\\n\\tb\\u00a0 c "}]}', "a b c", id="one-line"),
        pytest.param(b'{"errors":[{"message":"a\\u001b[31mb\\u202ec"}]}', "a?[31mb?c", id="nothing-for-a-terminal"),
        pytest.param(b'{"errors":[{"message":"\\u00fc\\u4e2d"}]}', "ü中", id="other-languages"),
        pytest.param(b'{"errors":[]}', "", id="no-error"),
        pytest.param(b"{}", "", id="another-document"),
        pytest.param(b'{"errors":[{"message":7}]}', "", id="wrong-type"),
        pytest.param(b'{"errors":null}', "", id="null"),
        pytest.param(b'{"errors":[{"message":"\\ud800a"}]}', "\ufffda", id="half-a-character"),
        pytest.param(b'{"Errors":[null],"errors":[{"Message":"a","detail":"\\ud800"}]}', "a", id="as-go-reads-it"),
        pytest.param(b"\xff", "", id="no-utf-8"),
        pytest.param(b"<html>", "", id="a-page"),
        pytest.param(b"", "", id="empty"),
        pytest.param(b'{"x":' + b"[" * 8000, "", id="deep"),
    ],
)
def test_what_a_registry_says(body: bytes, said: str) -> None:
    """A body that is no error of the distribution-spec says nothing."""
    assert read_refusal(body) == said


def test_long_text_is_cut() -> None:
    """At its end, since it begins with what matters."""
    said = read_refusal(b'{"errors":[{"message":"' + b"word " * 500 + b'"}]}')
    assert len(said) <= MOST_CHARACTERS
    assert said.startswith("word word ")
    assert said.endswith("…")


@given(st.text())
def test_any_message_becomes_a_short_printable_line(message: str) -> None:
    """It ends in events, which terminals show."""
    try:
        body = msgspec.json.encode({"errors": [{"message": message}]})
    except UnicodeEncodeError:
        return
    said = read_refusal(body)
    assert len(said) <= MOST_CHARACTERS
    assert said.isprintable()
    assert said == said.strip()
