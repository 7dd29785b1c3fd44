"""Where the types of Kubernetes' APIs stand."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import msgspec

import extender
from extender.kubernetes.extender_v1 import GoWire
from extender.kubernetes.meta_v1 import Wire


def heirs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """All classes that are derived from it."""
    for kind in base.__subclasses__():
        yield kind
        yield from heirs(kind)


def test_every_type_of_an_api_is_in_the_room_of_that_name() -> None:
    """Each is found beside the others of its API group, and nowhere else."""
    for module in pkgutil.walk_packages(extender.__path__, "extender."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    elsewhere = {kind for base in (Wire, GoWire) for kind in heirs(base) if kind.__module__.startswith("extender.")}
    elsewhere = {kind for kind in elsewhere if not kind.__module__.startswith("extender.kubernetes.")}
    assert elsewhere == set()
