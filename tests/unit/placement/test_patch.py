"""JSON Patch: the operations between two values, and that applying them gives the second."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.kubernetes.documents import Json
from extender.placement import patch
from extender.placement.patch import InvalidPatch, Operation, diff, pointer
from tests.unit.placement.json_patch import apply

# Strings and nulls at the leaves: values are compared as in Python, where 1 is True.
JSON = st.recursive(
    st.none() | st.text(alphabet="ab~/0é", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet="ab~/0-", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def operations(before: Json, after: Json) -> list[tuple[object, ...]]:
    steps = msgspec.to_builtins(list(diff(before, after)))
    return [tuple(step.values()) for step in steps]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({"a": "x"}, {"a": "x"}, [], id="equal"),
        pytest.param({"a": "x"}, {"a": "y"}, [("replace", "/a", "y")], id="changed"),
        pytest.param({}, {"a": None}, [("add", "/a", None)], id="null is a value"),
        pytest.param({"a": None}, {"a": []}, [("replace", "/a", [])], id="null becomes a list"),
        pytest.param({"a": None}, {}, [("remove", "/a")], id="null removed"),
        pytest.param({"a/b": {"~": "x"}}, {"a/b": {"~": "y"}}, [("replace", "/a~1b/~0", "y")], id="escapes"),
        pytest.param(["a"], ["a", "b", "c"], [("add", "/1", "b"), ("add", "/2", "c")], id="appended"),
        pytest.param(["b"], ["a", "b"], [("add", "/0", "a")], id="put in front"),
        pytest.param(["a", "b", "c", "d"], ["a", "d"], [("remove", "/2"), ("remove", "/1")], id="removed from within"),
        pytest.param([{"k": "x"}, "b"], [{"k": "y"}, "b"], [("replace", "/0/k", "y")], id="an item changed inside"),
        pytest.param(["a", "a"], ["a"], [("remove", "/1")], id="one of two equals"),
        pytest.param("a", ["a"], [("replace", "", ["a"])], id="the whole"),
    ],
)
def test_operations_are_the_few_that_are_needed(before: Json, after: Json, expected: list[tuple[object, ...]]) -> None:
    assert operations(before, after) == expected


@given(JSON, JSON)
def test_applying_the_difference_gives_the_second(before: Json, after: Json) -> None:
    """By an implementation of RFC 6902 of the tests' own and by ours, which leaves the first as it was."""
    kept, steps = msgspec.json.encode(before), list(diff(before, after))
    assert apply(before, msgspec.json.encode(steps)) == patch.apply(before, steps) == after
    assert msgspec.json.encode(before) == kept
    assert list(diff(before, msgspec.json.decode(kept))) == []


def test_pointer_escapes_each_step() -> None:
    """RFC 6901: `~` before `/`, so that nothing is escaped twice."""
    assert pointer(("metadata", "annotations", "a.io/b~1")) == "/metadata/annotations/a.io~1b~01"
    assert pointer(()) == ""


@pytest.mark.parametrize("path", ["/a/b", "/list/9", "/list/x/y", "/text/a", "/missing"])
def test_an_operation_that_does_not_fit_is_refused(path: str) -> None:
    with pytest.raises(InvalidPatch, match=path):
        patch.apply({"list": [1], "text": "t"}, [Operation("remove", path)])
