"""A stream cut into documents."""

import pytest

from extender.manifests.stream import ManifestError, StreamDocument, decode_stream, read_stream


def test_each_document_has_its_place() -> None:
    text = "# c\n---\na: 1\n---\n# nothing\n--- # Source: b.yaml\nb:\n  c\n...\nd: is not read\n"
    assert list(read_stream(text)) == [
        StreamDocument("a: 1\n", 8, 3, 2, {"a": 1}),
        StreamDocument("b:\n  c\n...\nd: is not read\n", text.index("b:"), 7, 4, {"b": "c"}),
    ]


def test_objects_of_json_stand_one_behind_the_other() -> None:
    text = '{"a": "\\ud83d\\ude00"}\n {"b":1}'
    assert list(read_stream(text)) == [
        StreamDocument('{"a": "\\ud83d\\ude00"}', 0, 1, 1, {"a": "\U0001f600"}),
        StreamDocument('{"b":1}', text.index('{"b'), 2, 2, {"b": 1}),
    ]
    assert [each.value for each in read_stream("{a: 1}\n---\nb: 2\n")] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_says_how_a_text_is_encoded(encoding: str) -> None:
    """It stays in the text, so that the file is written as it was."""
    data = ("\ufeffa: é\n" if encoding.startswith("utf-16") else "a: é\n").encode(encoding)
    text, found = decode_stream(data)
    assert [each.value for each in read_stream(text)] == [{"a": "é"}]
    assert text.encode(found) == data


def test_a_key_that_is_there_twice_is_told_and_the_last_counts() -> None:
    [found] = read_stream("---\na: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert found.value == {"a": 3, "b": {"c": 2}}
    assert found.repeats == (
        "line 3: the key 'c' is there a second time; the last counts",
        "line 4: the key 'a' is there a second time; the last counts",
    )


def test_a_key_that_a_json_object_has_twice_is_told_with_the_line_where_that_begins() -> None:
    """Of each object of the stream for itself; the last counts, as with kubectl."""
    one, two = read_stream('{"a": 1, "b": [{"c": 1,\n"c": 2}]}\n{"a": 1}')
    assert (one.value, two.value) == ({"a": 1, "b": [{"c": 2}]}, {"a": 1})
    assert one.repeats == ("line 1: below, the key 'c' is there a second time; the last counts",)
    assert two.repeats == ()


def test_an_error_has_its_line_and_column() -> None:
    for text, says in (
        ("a: 1\n---\nb: {c\n", r"line 3: .* \(column \d+\)"),
        ("a: 1\n---\nb: !!int c\n", r"line 3: cannot decode 'c' as a !!int \(column 10\)"),
        ("a: 1\n--- b\n", "line 2: invalid Yaml document separator: b"),
    ):
        with pytest.raises(ManifestError, match=says):
            list(read_stream(text))
    with pytest.raises(ManifestError, match="line 2: it is no text in UTF-8"):
        decode_stream(b"a: 1\nb: \xff\n")
