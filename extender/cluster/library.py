"""kubernetes-asyncio without its seven hundred generated models, which nothing here uses: 40 MB, half a second.

Knows how the library is laid out, and leaves it whole: what its packages define is there for whoever asks for it,
only later. Knows nothing of clusters.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_NAME = "kubernetes_asyncio"
# Packages that import everything below them, the outer ones first.
_PACKAGES = (_NAME, f"{_NAME}.client", f"{_NAME}.client.models")
# Of the names that Python itself looks for in a module, those that only the package's own `__init__` can give.
_OWN_WORDS = ("__all__", "__version__")
# Where the names are defined that the library's own configuration loaders take from a package.
_MODULES = {
    (f"{_NAME}.client", "Configuration"): f"{_NAME}.client.configuration",
    (f"{_NAME}.client", "ApiClient"): f"{_NAME}.client.api_client",
}


class _LatePackage(ModuleType):
    """A package whose own `__init__` runs when a name is asked for that is no module in it, nor in `_MODULES`."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _OWN_WORDS:
            raise AttributeError(name)
        qualified = f"{self.__name__}.{name}"
        if find_spec(qualified):
            return import_module(qualified)
        module = _MODULES.get((self.__name__, name))
        if module and find_spec(module):
            return getattr(import_module(module), name)
        _complete(self)
        return getattr(self, name)


def lighten_library() -> None:
    """From now on importing kubernetes-asyncio takes what is used of it. To no effect once it has been imported."""
    if _NAME in sys.modules:
        return
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is None:  # a release that is laid out differently is imported as it wants to be
            return
        sys.modules[name] = _late(spec)


def _late(spec: ModuleSpec) -> ModuleType:
    package = module_from_spec(spec)
    package.__class__ = _LatePackage
    return package


def _complete(package: ModuleType) -> None:
    package.__class__ = ModuleType
    loader = package.__spec__ and package.__spec__.loader
    if loader:
        loader.exec_module(package)
