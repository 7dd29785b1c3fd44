"""Bounded tables, all of which fit the service's memory, and digests made small."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.reference import digest_of, pack_digest, unpack_digest
from extender.tables import LruTable, ShareTable

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.sampled_from(["get", "peek", "remove", "remove_where"]), KEYS, st.just(0)),
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
        elif verb == "get":
            assert table.get(key) == found
            model = model if found is None else [row for row in model if row[0] != key] + [(key, found)]
        elif verb == "put":
            rows = [row for row in model if row[0] != key] + [(key, value)]
            model = rows[-size:]
            assert table.put(key, value) == len(rows) - len(model)
        elif verb == "remove":
            table.remove(key)
            model = [row for row in model if row[0] != key]
        else:
            table.remove_where(lambda one, number: one % 2 == 0 or number > 5)
            model = [row for row in model if not (row[0] % 2 == 0 or row[1] > 5)]
        assert list(table.items()) == model
        assert len(table) == len(model)
    assert {key: table.get(key) for key in range(8)} == {key: dict(model).get(key) for key in range(8)}


Owned = tuple[str, int]  # owner, cost
OWNERS = st.sampled_from("abcde")
SHARE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 200), OWNERS, st.integers(0, 5)),
        st.tuples(st.sampled_from(["peek", "remove"]), st.integers(0, 200), OWNERS, st.just(0)),
    ),
    max_size=200,
)


def share_table(size: int) -> ShareTable[int, Owned]:
    return ShareTable(size, owner_of=lambda _, value: value[0], cost_of=lambda _, value: value[1])


def rows_of(table: ShareTable[int, Owned]) -> dict[int, Owned]:
    """The rows in eviction order, none of which is used by this."""
    rows: dict[int, Owned] = {}
    table.remove_where(lambda key, value: rows.setdefault(key, value) is None)
    return rows


def cost_in(size: int, value: Owned) -> int:
    return min(max(value[1], 1), size)


@given(size=st.integers(1, 120), steps=SHARE_STEPS)
def test_who_holds_more_than_its_part_takes_nothing_from_who_does_not(
    size: int, steps: list[tuple[str, int, str, int]]
) -> None:
    """Whatever is put, read and removed: rows stay within the size, and in small tables each owner within its part."""
    table = share_table(size)
    rows: dict[int, Owned] = {}
    for verb, key, owner, cost in steps:
        before = dict(rows)
        if verb == "put":
            before[key] = (owner, cost)
            table.put(key, (owner, cost))
        elif verb == "remove":
            before.pop(key, None)
            table.remove(key)
        else:
            assert table.get(key) == rows.get(key)
        rows = rows_of(table)
        assert rows.items() <= before.items()
        held, held_before = _held(size, rows), _held(size, before)
        assert table.cost == held.total() <= size
        assert len(table) == len(rows)
        losers = {before[key][0] for key in before.keys() - rows.keys()}
        harmed = {one for one in losers - {owner} if held_before[one] * len(held_before) <= size}
        assert not (harmed and held[owner] * len(held) > size)
        assert not (harmed and len(before) <= 65)


def _held(size: int, rows: dict[int, Owned]) -> Counter[str]:
    held: Counter[str] = Counter()
    for value in rows.values():
        held[value[0]] += cost_in(size, value)
    return held


@given(size=st.integers(80, 200), flood=st.integers(100, 500), cost=st.integers(1, 60))
def test_a_flood_of_one_owner_evicts_its_own_rows(size: int, flood: int, cost: int) -> None:
    """Four owners with their parts lose nothing to a fifth, although they never use their rows."""
    table = share_table(size)
    kept = [(owner, number) for owner in "abcd" for number in range(size // 5)]
    for number, row in enumerate(kept):
        table.put(number, (row[0], 1))
    for number in range(flood):
        table.put(1000 + number, ("e", cost))
    assert [table.get(number) for number in range(len(kept))] == [(owner, 1) for owner, _ in kept]
    assert table.cost <= size


def test_parts_shrink_with_the_number_of_owners() -> None:
    """An owner that was alone gives way to others until each holds a quarter; it keeps the rows that it used last."""
    table = share_table(1000)
    for number in range(1000):
        table.put(number, ("a", 1))
    for number in range(1000, 4000):
        table.put(number, ("bcd"[number % 3], 1))
    assert Counter(owner for owner, _ in rows_of(table).values()) == dict.fromkeys("abcd", 250)
    assert [number for number in range(1000) if table.get(number)] == list(range(750, 1000))


def test_a_put_passes_over_few_rows() -> None:
    """64 at most, however many rows stand before the one that goes; then the new row goes if its owner has too much."""
    judged: list[int] = []

    def owner_of(key: int, value: Owned) -> str:
        judged.append(key)
        return value[0]

    table = ShareTable(10_000, owner_of=owner_of, cost_of=lambda *_: 1)
    for number in range(10_000):
        table.put(number, (f"owner-{number % 900}" if number < 9_000 else "flood", 1))
    judged.clear()
    table.put(10_000, ("flood", 1))
    assert judged == [10_000, *range(65), 10_000, 10_000]
    assert list(rows_of(table)) == [*range(64, 10_000), *range(64)]
    table.put(10_001, ("owner-1", 1))
    assert list(rows_of(table)) == [*range(129, 10_000), *range(64), 10_001, *range(64, 128)]


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
