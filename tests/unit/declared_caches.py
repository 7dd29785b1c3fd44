"""The caches of the whole package. Each module declares its own when it is imported."""

import importlib
import pkgutil

import extender
from extender.tables import CacheSpec, caches


def declared_caches() -> tuple[CacheSpec, ...]:
    """Imports all modules and returns their declarations, by name."""
    for module in pkgutil.walk_packages(extender.__path__, "extender."):
        if module.name != "extender.__main__":
            importlib.import_module(module.name)
    return caches()
