"""What is read of YAML: what kubectl reads, and nothing that costs more than it is long."""

from collections.abc import Callable
from typing import Any

import pytest

from extender.bounded_yaml import DEEPEST, InvalidYaml, bounded_events
from extender.yaml_values import PlainText, read_texts, read_yaml

Reader = Callable[[str], Any]
READERS: tuple[Reader, ...] = (read_yaml, read_texts, lambda text: list(bounded_events(text)))


def doubling(value: str, levels: int) -> str:
    lines = (f"k{at}: &a{at + 1} {value.replace('A', f'a{at}')}\n" for at in range(levels))
    return "k: &a0 {x: 1}\n" + "".join(lines)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (doubling("{<<: [*A, *A]}", 25), "line 1[0-9]: its aliases, written out, are too large"),
        (doubling("[*A, *A]", 25), "line 1[0-9]: its aliases, written out, are too large"),
        (doubling("{? {a: *A} : *A}", 25), "line 1[0-9]: its aliases, written out, are too large"),
        ("{" + "<<: {}, " * 100_000 + "}", "line 1: the key '<<' is there a second time"),
        ("a: &a {<<: *a}", "line 1: found an alias within what it names"),
        ("a: &a 1\n---\nb: *a", "line 3: found undefined alias"),
        ("[" * 100_000, "line 1: it is nested too deep"),
        ("a0: &a0 []\n" + "".join(f"a{at}: &a{at} [*a{at - 1}]\n" for at in range(1, 250)), "too large|too deep"),
        ("a: 1\nb: [1", "line 2: "),
        ("kind: ConfigMap\ndata: {a: 1\n\n", "line 2: "),
        ("a: 1\nb: 'x\n", "line 2: "),
        ("{{- if .Values.x }}\na: 1\n{{- end }}\n", "line 1: "),
        ("a: \tb: c", "line 1: "),
        ("a: 1\nb: \x00", "line 2: "),
    ],
    ids=["merges", "lists", "keys", "keys of merges", "itself", "another's", "deep", "deep by aliases",
         "no end", "no end of a map", "no end of a text", "a chart's template", "a tab", "null"],
)  # fmt: skip
def test_what_grows_or_is_no_yaml_is_refused_with_its_line(read: Reader, text: str, says: str) -> None:
    with pytest.raises(InvalidYaml, match=says):
        read(text)


def test_the_documents_of_a_stream_share_a_bound() -> None:
    text = "---\n".join(["a: &a [" + "b," * 1000 + "]\nc: [" + "*a," * 9 + "]\n"] * 99)
    with pytest.raises(InvalidYaml, match="its aliases, written out"):
        list(bounded_events(text))


@pytest.mark.parametrize("read", [read_yaml, read_texts])
def test_aliases_and_merges_of_a_usual_size_are_read(read: Reader) -> None:
    text = "base: &base {a: b, c: d}\nlist: [" + ", ".join(["{<<: *base, c: e}"] * 1000) + "]\n"
    assert read(text)["list"] == [{"a": "b", "c": "e"}] * 1000
    assert read("[" * DEEPEST + "]" * DEEPEST)


def test_plain_scalars_are_what_kubectl_reads() -> None:
    text = "[22:22, 1:30.5, 2001-01-01, 2001-13-45, =, off, 010, 0x1f, 1_0, .5, ~, 1e3, '1', !!str 1, !!int '1', 0o17]"
    assert read_yaml(text) == [
        "22:22", "1:30.5", "2001-01-01", "2001-13-45", "=", False, 8, 31, 10, 0.5, None, 1000, "1", "1", 1, 15,
    ]  # fmt: skip


def test_texts_are_what_stands_there() -> None:
    found = read_texts(
        "off: [Off, 010, '~', ~, !!bool yes, !!int 0x1, , 2001-01-01, ! 5, !!str ~]\n".replace(", ,", ",")
    )
    assert found == {"off": ["Off", "010", "~", "~", "yes", "0x1", "2001-01-01", "5", "~"]}
    plain = {at: each.is_null for at, each in enumerate(found["off"]) if isinstance(each, PlainText)}
    assert plain == {0: False, 1: False, 3: True, 4: False, 5: False, 6: False}
    with pytest.raises(InvalidYaml, match="line 2: the tag '!vault' is not known"):
        read_texts("a: b\nc: !vault d\n")


def test_keys_are_what_kubernetes_reads() -> None:
    """A merge key replaces what stands before it, and a key that is no text becomes one."""
    text = "x: &x {a: 1, b: 2}\ny: {b: 4, <<: *x}\n"
    assert read_texts(text) == {"x": {"a": "1", "b": "2"}, "y": {"a": "1", "b": "2"}}
    assert read_yaml(text) == {"x": {"a": 1, "b": 2}, "true": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    "value",
    ["!!int 1:1:1", "!!float " + "1:" * 3000 + "1.5", "!!bool x", "!!timestamp x", "!!float x", "!!int x", "{[a]: 1}",
     "{<<: 3}"],
)  # fmt: skip
def test_a_value_that_is_not_what_its_tag_says_is_refused(value: str) -> None:
    with pytest.raises(InvalidYaml, match=r"^(line|document) 1: "):
        read_yaml(f"a: {value}\n")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {c: 1, c: 2}", "a: [{b: 1}, {b: 2, d: 3,\n'b': 4}]", "{a: 1, b: 2,\n a: 3}", "1: a\n'1': b"]
)
def test_a_key_twice_is_refused_where_that_is_wanted(text: str) -> None:
    with pytest.raises(InvalidYaml, match=r"^line [12]: the key '\w' is there a second time"):
        read_yaml(text, unique_keys=True)
    with pytest.raises(InvalidYaml, match="second time"):
        read_texts(text)
    assert read_yaml(text)


def test_one_document_is_read_and_no_two() -> None:
    assert read_yaml("") is None
    assert read_yaml(b"\xef\xbb\xbfa: 1\n") == {"a": 1}
    for read in (read_yaml, read_texts):
        with pytest.raises(InvalidYaml, match="more than one document"):
            read("a: 1\n---\nb: 2\n")
    with pytest.raises(InvalidYaml, match="no text in UTF-8"):
        read_yaml(b"\xff\xfea")
