"""Bounded tables, and digests made small."""

from itertools import dropwhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.digest import digest_of, pack_digest, unpack_digest
from extender.tables import LruTable, Table

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.sampled_from(["peek", "remove", "remove_where"]), KEYS, st.just(0)),
    ),
    max_size=60,
)


@given(size=st.integers(1, 6), steps=STEPS)
def test_an_lru_table_does_what_a_list_in_order_of_use_does(size: int, steps: list[tuple[str, int, int]]) -> None:
    """Whatever is put, read and removed: the rows are those of a list whose first goes when there are too many."""
    table: LruTable[int, int] = LruTable(size)
    model: list[tuple[int, int]] = []
    for verb, key, value in steps:
        found = dict(model).get(key)
        if verb == "peek":
            assert table.peek(key) == found
            model = model if found is None else [row for row in model if row[0] != key] + [(key, found)]
        elif verb == "put":
            table.put(key, value)
            model = ([row for row in model if row[0] != key] + [(key, value)])[-size:]
        elif verb == "remove":
            table.remove(key)
            model = [row for row in model if row[0] != key]
        else:
            table.remove_where(lambda one, number: one % 2 == 0 or number > 5)
            model = [row for row in model if not (row[0] % 2 == 0 or row[1] > 5)]
        assert len(table) == len(model)
    assert {key: table.peek(key) for key in range(8)} == {key: dict(model).get(key) for key in range(8)}


@given(size=st.integers(1, 6), keys=st.lists(KEYS, max_size=60))
def test_a_table_written_in_place_does_what_a_list_in_order_of_arrival_does(size: int, keys: list[int]) -> None:
    """Reading changes nothing, and what is put again keeps its place."""
    table: Table[int, int] = Table(size)
    model: dict[int, int] = {}
    for value, key in enumerate(keys):
        expected = len(model) == size and key not in model
        model[key] = value
        if len(model) > size:
            del model[next(iter(model))]
        assert table.put_in_place(key, value) == expected
        assert len(table) == len(model)
        assert {key: table.peek(key) for key in range(8)} == {key: model.get(key) for key in range(8)}


@given(size=st.integers(1, 6), steps=STEPS)
def test_a_table_does_what_a_list_in_order_of_writing_does(size: int, steps: list[tuple[str, int, int]]) -> None:
    """Reading changes nothing, what is put again comes last, and the rows are told in the order in which they go."""
    table: Table[int, int] = Table(size)
    model: list[tuple[int, int]] = []
    for verb, key, value in steps:
        if verb == "peek":
            assert table.peek(key) == dict(model).get(key)
        elif verb == "put":
            rows = [row for row in model if row[0] != key] + [(key, value)]
            model = rows[-size:]
            assert table.put(key, value) == len(rows) - len(model)
        elif verb == "remove":
            table.remove(key)
            model = [row for row in model if row[0] != key]
        else:
            table.remove_first_while(lambda one, number: one % 2 == 0 or number > 5)
            model = list(dropwhile(lambda row: row[0] % 2 == 0 or row[1] > 5, model))
        assert list(table.items()) == model
        assert len(table) == len(model)


@pytest.mark.parametrize(("size", "gone"), [(1000, 1), (1999, 1), (2000, 2), (10_000, 10)])
def test_a_large_table_lets_go_of_several_rows_at_a_time(size: int, gone: int) -> None:
    """One in a thousand, those that came first; it is never beyond its size."""
    table: Table[int, int] = Table(size)
    for key in range(size):
        assert table.put(key, key) == 0
    assert table.put(size, size) == gone
    assert len(table) == size + 1 - gone
    assert table.peek(gone - 1) is None
    assert table.peek(gone) == gone


@pytest.mark.parametrize(
    ("digest", "size_bytes"),
    [
        pytest.param(digest_of(b"x"), 32, id="sha256-is-packed"),
        pytest.param(digest_of(b"x", "sha512"), len("sha512:") + 128, id="sha512-is-kept"),
        pytest.param("sha256:" + "AB" * 32, 71, id="upper-case-is-kept"),
        pytest.param("sha256:" + "ab " * 21 + "a", 71, id="spaces-are-kept"),
        pytest.param("sha256:" + "g" * 64, 71, id="what-is-no-hex-is-kept"),
        pytest.param("sha256:abcd", 11, id="a-short-one-is-kept"),
        pytest.param("", 0, id="nothing"),
    ],
)
def test_a_digest_comes_out_as_it_went_in(digest: str, size_bytes: int) -> None:
    """Packing halves sha256 digests and changes nothing about any other text."""
    packed = pack_digest(digest)
    assert unpack_digest(packed) == digest
    assert len(packed) == size_bytes
