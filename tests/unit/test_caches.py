"""All caches fit the service's memory."""

import importlib
import pkgutil

import pytest

import extender
from extender.tables import CacheSpec, caches, declare_cache

MOST_MB = 300


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


def test_a_name_stands_for_one_cache() -> None:
    """The same declaration may come twice, as from a module that is loaded again; another may not."""
    first = declared_caches()[0]
    assert declare_cache(first.name, key=first.key, rows=first.rows, most_mb=first.most_mb) == first
    with pytest.raises(ValueError, match=f"two caches named {first.name}"):
        declare_cache(first.name, key="another", rows=1, most_mb=1)
