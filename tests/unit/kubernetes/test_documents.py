"""Documents whose parts may be missing, null, or of another type than the reader expects."""

import copy

import pytest

from extender.kubernetes.documents import Json, JsonObject, list_at, map_at, pruned, put, value_at, without


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"a": [{"b": "x"}]}, "x"),
        ({"a": [{"b": None}]}, None),
        ({"a": [{}]}, None),
        ({"a": [7]}, None),
        ({"a": []}, None),
        ({"a": {"0": {"b": "x"}}}, None),
        ({"a": None}, None),
        ({}, None),
        (["a"], None),
        ("a", None),
        (None, None),
    ],
)
def test_a_value_past_what_is_missing_is_none(document: Json, found: Json) -> None:
    assert value_at(document, "a", 0, "b") == found


@pytest.mark.parametrize("other", [None, "text", 7, True])
def test_what_is_no_map_or_list_is_an_empty_one(other: Json) -> None:
    assert map_at({"a": other}, "a") == map_at({"a": []}, "a") == map_at({}, "a") == map_at(other) == {}
    assert list_at({"a": other}, "a") == list_at({"a": {}}, "a") == list_at({}, "a") == list_at(other) == []


def test_what_is_there_is_the_documents_own() -> None:
    document: Json = {"a": {"b": [1]}}
    list_at(document, "a", "b").append(2)
    map_at(document, "a")["c"] = {}
    assert document == {"a": {"b": [1, 2], "c": {}}}


@pytest.mark.parametrize("document", [{}, {"a": None}, {"a": {}}, {"a": {"b": None}}, {"a": {"b": {"c": 7}}}])
def test_what_is_put_into_a_document_leaves_the_document_itself_as_it_was(document: JsonObject) -> None:
    before = copy.deepcopy(document)
    assert put(document, ("a", "b", "c"), [1]) == {"a": {"b": {"c": [1]}}}
    assert put({**document, "d": 0}, ("a", "b", "c"), "") == {"a": {"b": {"c": ""}}, "d": 0}
    assert document == before


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_nothing_put_into_a_document_leaves_no_empty_map_around_it(nothing: Json) -> None:
    document: JsonObject = {"a": {"b": {"c": [1]}, "d": {}}, "e": {"f": 1}}
    assert put(document, ("a", "b", "c"), nothing) == {"a": {"d": {}}, "e": {"f": 1}}
    assert put(document, ("e", "f"), nothing) == {"a": {"b": {"c": [1]}, "d": {}}, "e": {}}
    assert put({}, ("e", "f"), nothing) == {"e": {}}


def test_what_a_document_has_no_longer_is_all_that_changes() -> None:
    document: JsonObject = {"a": {"b": {"c": [1]}}, "e": None}
    assert without(document, "a", "b", "c") == {"a": {"b": {}}, "e": None}
    for path in (("x",), ("e", "f"), ("a", "x", "c"), ("a", "b", "x")):
        assert without(document, *path) == document


def test_pruned_documents_have_no_maps_and_lists_that_are_empty() -> None:
    document: Json = {"a": [{"b": [], "f": 1}, {}, None], "c": {"d": {}}, "e": 0}
    assert pruned(document) == {"a": [{"f": 1}, {}, None], "e": 0}
