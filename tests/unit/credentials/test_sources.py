"""The sources of credentials: what is declared of them in one place holds in all others."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import aiohttp
import pytest

import extender.credentials
from extender.credential_sources import Cloud, Source
from extender.credentials.cloud_api import CloudAccess
from extender.credentials.operator_keyring import open_cloud


def provider_sources() -> Iterator[object]:
    room = extender.credentials
    for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        for kind in vars(import_module(module.name)).values():
            if isinstance(kind, type) and kind.__module__ == module.name and hasattr(kind, "provide"):
                yield vars(kind)["source"]


def test_every_provider_is_declared() -> None:
    """A source that is named in its own file alone fails here, before it fails where it is opened."""
    sources = [source for source in provider_sources() if not isinstance(source, property)]  # that is the protocol's
    assert all(isinstance(source, Source | Cloud) for source in sources)
    assert sorted(sources, key=str) == sorted([Source.HELPER, Source.PROVIDER, *Cloud], key=str)


@pytest.mark.parametrize("cloud", Cloud)
async def test_every_cloud_opens_its_own_provider(cloud: Cloud) -> None:
    """It is the class that the declaration names, and calls itself as the declaration does."""
    async with aiohttp.ClientSession() as session:
        provider = open_cloud(cloud, CloudAccess(session, {}, lambda: 0.0))
    assert provider.source is cloud
    assert provider.name == cloud.value
    assert not provider.serves("registry.example.com/team/app")
