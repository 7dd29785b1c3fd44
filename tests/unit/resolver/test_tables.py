"""Bounded tables, and digests made small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.digest import digest_of
from extender.resolver.tables import Table, pack_digest, unpack_digest

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.sampled_from(["peek", "remove", "remove_where"]), KEYS, st.just(0)),
    ),
    max_size=60,
)


@given(size=st.integers(1, 6), steps=STEPS)
def test_a_table_does_what_a_list_in_order_of_use_does(size: int, steps: list[tuple[str, int, int]]) -> None:
    """Whatever is put, read and removed: the rows are those of a list whose first goes when there are too many."""
    table: Table[int, int] = Table(size)
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
