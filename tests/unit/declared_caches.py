"""The caches of the whole package: each module declares its own when it is imported."""

import importlib
import pkgutil

import extender
from extender.tables import CacheSpec, caches


def declared_caches() -> tuple[CacheSpec, ...]:
    """The declarations of all modules, by name."""
    for module in pkgutil.walk_packages(extender.__path__, "extender."):
        if module.name != "extender.__main__":
            importlib.import_module(module.name)
    return caches()
