"""A cache is made from its declaration, and all of them fit the service's memory."""

import importlib
import pkgutil

import pytest

import extender
from extender.tables import CacheSpec, LruTable, ShareTable, caches, declare_cache

MOST_MB = 300


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been declared, for tests that declare something."""
    monkeypatch.setattr("extender.tables._DECLARED", {})


@pytest.mark.usefixtures("no_caches")
def test_a_cache_is_made_from_its_declaration() -> None:
    """The declaration's bound is the cache's, unless whoever makes it gives another."""
    spec = declare_cache("test.tables.letters", key="letter", rows=2, most_mb=0.1)
    rows: LruTable[str, int] = LruTable(spec.bound())
    for number, letter in enumerate("abc"):
        rows.put(letter, number)
    assert [rows.get(letter) for letter in "abc"] == [None, 1, 2]


@pytest.mark.usefixtures("no_caches")
def test_a_cache_bounded_by_a_setting_needs_its_size() -> None:
    """Nothing else says how large it is."""
    spec = declare_cache("test.tables.numbers", key="number", most_mb=0.1)
    table: LruTable[int, int] = LruTable(spec.bound(1))
    assert [table.put(number, number) for number in range(3)] == [0, 1, 1]
    shares: ShareTable[int, int] = ShareTable(spec.bound(1), owner_of=lambda *_: "")
    shares.put(1, 1)
    assert shares.cost == 1
    with pytest.raises(TypeError, match=r"test\.tables\.numbers has no bound of its own"):
        spec.bound()


@pytest.mark.usefixtures("no_caches")
def test_a_name_stands_for_one_cache() -> None:
    """The same declaration may come twice, as from a module that is loaded again; another may not."""
    first = declare_cache("test.tables.twice", key="a", rows=1, most_mb=1)
    assert declare_cache("test.tables.twice", key="a", rows=1, most_mb=1) == first
    with pytest.raises(ValueError, match=r"two caches named test\.tables\.twice"):
        declare_cache("test.tables.twice", key="b", rows=1, most_mb=1)
    other = declare_cache("test.tables.another", key="a", rows=1, most_mb=1)
    assert caches() == (other, first)


def declared_caches() -> tuple[CacheSpec, ...]:
    """The declarations of the whole package; each module declares its own when it is imported."""
    for module in pkgutil.walk_packages(extender.__path__, "extender."):
        if module.name != "extender.__main__":
            importlib.import_module(module.name)
    return caches()


def test_all_tables_of_the_service_fit_its_memory() -> None:
    """What they take at most, all together, leaves room beside them in a container of 512 MiB."""
    specs = declared_caches()
    assert specs
    assert all(spec.most_mb > 0 for spec in specs)
    assert sum(spec.most_mb for spec in specs) < MOST_MB
