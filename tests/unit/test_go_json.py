"""JSON as Go's encoding/json reads it. Go 1.26 has judged each row."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.go_json import GoDecoder, InvalidJson


class Inner(msgspec.Struct):
    """A struct in another."""

    name: str | None = None
    size: int | None = None


class Outer(msgspec.Struct, rename="camel"):
    """One field of each kind."""

    name: str | None = None
    mask: str | None = None
    media_type: str | None = None
    size: int | None = None
    inner: Inner | None = None
    words: list[str] | None = None
    inners: list[Inner] | None = None
    labels: dict[str, str] | None = None
    entries: dict[str, Inner] | None = None


DECODER = GoDecoder(Outer, most_values=1000)


def read(body: str | bytes) -> Outer:
    """The document, in which no more than a thousand values are allowed."""
    return DECODER.decode(body.encode() if isinstance(body, str) else body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"Name": "a", "MEDIATYPE": "b"}', Outer(name="a", media_type="b")),
        ('{"ſize": 1, "maſ\\u212a": "a"}', Outer(size=1, mask="a")),  # letters that fold to others
        ('{"\\u006eame": "a"}', Outer(name="a")),
        ('{"name ": "a", "naıme": "b", "na_me": "c"}', Outer()),
        ('{"NAME": "a", "name": "b"}', Outer(name="b")),  # the last spelling counts, whatever it is
        ('{"name": "b", "Name": "a"}', Outer(name="a")),
        ('{"name": "a", "name": null}', Outer(name="a")),  # null changes nothing
        ('{"name": null, "size": null}', Outer()),
        ("null", Outer()),
        ('{"inner": {"name": "a"}, "Inner": {"size": 1}}', Outer(inner=Inner("a", 1))),  # structs are merged
        ('{"inner": {"name": "a"}, "inner": null}', Outer()),  # null takes back what may be None
        ('{"size": -9223372036854775808}', Outer(size=-(2**63))),
        ('{"words": ["a", "b"], "words": ["c"]}', Outer(words=["c"])),  # lists are as long as the last
        ('{"words": ["a", "b"], "words": [null]}', Outer(words=["a"])),  # and written over the one before
        ('{"inners": [{"name": "a"}], "inners": [{"size": 1}, {}]}', Outer(inners=[Inner("a", 1), Inner()])),
        ('{"labels": {"a": "1"}, "labels": null, "labels": {"b": "2"}}', Outer(labels={"b": "2"})),
        ('{"words": ["a"], "words": null}', Outer()),
        ('{"words": ["a", null]}', Outer(words=["a", ""])),
        ('{"inners": [null, {"Size": 1}]}', Outer(inners=[Inner(), Inner(size=1)])),
        # maps are merged, their keys are exact, and what they hold is not merged
        ('{"labels": {"a": "1", "A": "2"}, "LABELS": {"b": null}}', Outer(labels={"a": "1", "A": "2", "b": ""})),
        (
            '{"entries": {"a": {"name": "x"}, "a": {"size": 1}, "b": null}}',
            Outer(entries={"a": Inner(size=1), "b": Inner()}),
        ),
        ('{"other": "\\ud800", "name": "a"}', Outer(name="a")),  # half a surrogate pair
        ('{"\\udc00": 1, "name": "a"}', Outer(name="a")),
        ('{"name": "\\ud800a"}', Outer(name="\ufffda")),
        ('{"name": "\\ud83d\\ude00"}', Outer(name="\U0001f600")),
        (b'{"name": "J\xf8rn", "labels": {"\xff": "a"}}', Outer(name="J\ufffdrn", labels={"\ufffd": "a"})),
        ('{"other": 1e999, "size": -0}', Outer(size=0)),
        pytest.param('{"other": 1' + "0" * 5000 + "}", Outer(), id="a number of 5,000 digits"),
        pytest.param('{"other": ' + "[" * 500 + "]" * 500 + ', "name": "a"}', Outer(name="a"), id="nested, not read"),
        (' \r\n\t{"name":"a"}\n', Outer(name="a")),
    ],
)
def test_what_go_reads_is_read(body: str | bytes, expected: Outer) -> None:
    """Field by field as Go would fill the same struct."""
    assert read(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "", "{", '{"name":"a"} x', '\ufeff{"name":"a"}', "[]", '"name"', "1", '{"name":1}',
        '{"name":{}}', '{"name":[]}', '{"size":1.0}', '{"size":1e3}', '{"size":true}',
        '{"size":"1"}', '{"size":10000000000000000000000}',
        '{"inner":[]}', '{"words":{}}', '{"words":[[]]}', '{"labels":[]}', '{"labels":{"a":1}}', '{"other":NaN}',
        '{"other":-Infinity}', '{"other":01}', '{"other":1.}', '{"other":"\t"}', '{"other":"\\x"}', '{"other":"\\u12"}',
        "{'name':1}", '{"name":1,"name":"a"}', '{"entries":{"a":{"size":""},"a":{}}}', '{"size":9223372036854775808}',
        '{"name":"a",}',
    ],
)  # fmt: skip
def test_what_go_refuses_is_refused(body: str) -> None:
    """Whatever is wrong, one error comes out."""
    with pytest.raises(InvalidJson):
        read(body)


def test_a_document_is_bounded() -> None:
    """Small documents could take much memory, and deep ones the stack."""
    with pytest.raises(InvalidJson, match="more than 1000 values"):
        read('{"other": [' + ",".join("[]" for _ in range(600)) + "]}")
    with pytest.raises(InvalidJson, match="too deep"):
        GoDecoder(Outer, most_values=1_000_000).decode(b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_the_message_quotes_nothing() -> None:
    """Documents hold passwords."""
    for body in ('{"name": {"secret": 1}}', '{"name": "secret', '{"secret": 1', '{"labels": {"secret": 7}}'):
        with pytest.raises(InvalidJson) as caught:
            read(body)
        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "Inner", "x"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_document_is_read_or_refused(document: object) -> None:
    """Nothing else is raised, whatever stands where."""
    with contextlib.suppress(InvalidJson):
        assert isinstance(DECODER.decode(msgspec.json.encode(document)), Outer)
