"""JSON as others write it. What Go's encoding/json makes of each row is the same, but for what is said beside it."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.lenient_json import InvalidJson, LenientDecoder


class Inner(msgspec.Struct):
    """A struct in another."""

    name: str | None = None
    size: int | None = None


class Outer(msgspec.Struct, rename="camel"):
    """One field of each kind."""

    name: str | None = None
    media_type: str | None = None
    size: int | None = None
    inner: Inner | None = None
    words: list[str | None] | None = None
    labels: dict[str, str | None] | None = None


DECODER = LenientDecoder(Outer, most_values=1000)


def read(body: str | bytes) -> Outer:
    """The document, in which no more than a thousand values are allowed."""
    return DECODER.decode(body.encode() if isinstance(body, str) else body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"mediaType": "a", "\\u006eame": "b"}', Outer(name="b", media_type="a")),
        ("null", Outer()),
        (" \r\n\tnull\n", Outer()),
        ('{"name": null, "size": null, "inner": null, "words": null, "labels": null}', Outer()),
        ('{"inner": {"name": null}, "words": ["a", null]}', Outer(inner=Inner(), words=["a", None])),  # there it is ""
        ('{"labels": {"a": null}}', Outer(labels={"a": None})),
        ('{"size": -9223372036854775808}', Outer(size=-(2**63))),
        ('{"other": 1e999, "size": -0}', Outer(size=0)),
        pytest.param('{"other": 1' + "0" * 5000 + "}", Outer(), id="a number of 5,000 digits"),
        pytest.param('{"other": ' + "[" * 500 + "]" * 500 + ', "name": "a"}', Outer(name="a"), id="nested, not read"),
        (' \r\n\t{"name":"a"}\n', Outer(name="a")),
        (b'{"name": "J\xf8rn", "labels": {"\xff": "a"}}', Outer(name="J\ufffdrn", labels={"\ufffd": "a"})),
        (b'{"other": "\xff", "\xfe": 1, "name": "a"}', Outer(name="a")),
    ],
)
def test_what_others_write_is_read(body: str | bytes, expected: Outer) -> None:
    assert read(body) == expected


SURROGATES = [
    (r"\ud83d\ude00", "\U0001f600"), (r"\uD83D\uDE00", "\U0001f600"),
    (r"\ud800", "\ufffd"), (r"\udc00", "\ufffd"), (r"\ud800a", "\ufffda"), (r"\ud800\n", "\ufffd\n"),
    (r"\ud800\ud83d\ude00", "\ufffd\U0001f600"), (r"\ud83d\ude00\ude00", "\U0001f600\ufffd"),
    (r"\udc00\ud800\u0041", "\ufffd\ufffdA"), (r"\ud800\u0041", "\ufffdA"),
    (r"\\ud800", r"\ud800"), (r"\\\ud800", "\\\ufffd"), (r"\\\\ud800", r"\\ud800"), (r"\\\ud83d\ude00", "\\\U0001f600"),
    (r"\\ud83d\ude00", "\\ud83d\ufffd"),
]  # fmt: skip


@pytest.mark.parametrize(("escapes", "text"), SURROGATES)
def test_half_a_surrogate_pair_is_no_character(escapes: str, text: str) -> None:
    """In values, in keys, and where nobody reads it."""
    assert read(f'{{"name": "{escapes}"}}') == Outer(name=text)
    assert read(f'{{"labels": {{"{escapes}": "x"}}}}') == Outer(labels={text: "x"})
    assert read(f'{{"other": ["{escapes}"], "{escapes}": 1, "name": "a"}}') == Outer(name="a")


@pytest.mark.parametrize(
    "body",
    [
        "", "{", '{"name":"a"} x', '\ufeff{"name":"a"}', "[]", '"name"', "1", '{"name":1}',
        '{"name":{}}', '{"name":[]}', '{"size":1.0}', '{"size":1e3}', '{"size":true}', '{"size":"1"}',
        '{"inner":[]}', '{"words":{}}', '{"words":[[]]}', '{"labels":[]}', '{"labels":{"a":1}}', '{"other":NaN}',
        '{"other":-Infinity}', '{"other":01}', '{"other":1.}', '{"other":"\t"}', '{"other":"\\x"}', '{"other":"\\u12"}',
        '{"name":"\\ud8"}', '{"name":"\\ud8zz"}', '{"name":"\\ud800\\udczz"}', "nul", "null null",
        "{'name':1}", '{"name":1,"name":"a"}', '{"name":"a",}',
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(body: str) -> None:
    """Whatever is wrong, one error comes out."""
    with pytest.raises(InvalidJson):
        read(body)


def test_a_document_is_bounded() -> None:
    """Small documents could take much memory, and deep ones the stack."""
    with pytest.raises(InvalidJson, match="more than 1000 values"):
        read('{"other": [' + ",".join("[]" for _ in range(600)) + "]}")
    with pytest.raises(InvalidJson, match="too deep"):
        LenientDecoder(Outer, most_values=1_000_000).decode(b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_the_message_quotes_nothing() -> None:
    """Documents hold passwords."""
    for body in ('{"name": {"secret": 1}}', '{"name": "secret', '{"secret": 1', '{"labels": {"secret": 7}}'):
        with pytest.raises(InvalidJson) as caught:
            read(body)
        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "inner", "x"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_document_is_read_or_refused(document: object) -> None:
    """Nothing else is raised, whatever stands where, half pairs included."""
    with contextlib.suppress(InvalidJson):
        assert isinstance(DECODER.decode(json.dumps(document).encode()), Outer)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_read_with_its_halves_replaced(text: str) -> None:
    """As if each half were the replacement character from the start."""
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert read(json.dumps({"name": text})) == Outer(name=expected)
