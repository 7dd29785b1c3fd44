"""The operator's credentials as one keyring: a Docker configuration, credential-provider plugins, cloud identities.

Knows their order, which is the kubelet's: files, then plugins; direct identities, which the kubelet no longer has,
come last.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal

import aiohttp

from extender.credentials.aws import EcrProvider
from extender.credentials.azure import AzureProvider
from extender.credentials.docker_config import load_docker_config
from extender.credentials.google import GoogleProvider
from extender.credentials.keyring import JoinedKeyring, Keyring
from extender.credentials.kubelet_plugins import load_credential_plugins
from extender.credentials.providers import CredentialProvider, ProviderKeyring
from extender.errors import ConfigError

Cloud = Literal["ecr", "gcp", "acr"]


@contextlib.asynccontextmanager
async def open_operator_keyring(
    *,
    docker_config: str,
    plugin_config: str,
    plugin_dir: str,
    clouds: Sequence[Cloud],
    environment: Mapping[str, str],
    key: bytes,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> AsyncIterator[Keyring]:
    """The keyring, until the context is left; an empty path or list leaves its part out.

    `environment` is what a cloud's webhook gave our pod. Clouds are asked through a session without an address guard,
    since metadata servers have link-local addresses, and without proxies: no pod names what it asks.

    Raises:
        ConfigError: one of the files cannot be used.
    """
    parts: list[Keyring] = []
    if docker_config:
        parts.append(load_docker_config(docker_config, key=key, clock=clock))
    if bool(plugin_config) != bool(plugin_dir):
        raise ConfigError("registry.credential_providers: config and bin_dir are needed together")
    if plugin_config:
        parts += load_credential_plugins(plugin_config, plugin_dir, key=key, clock=clock)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        providers: dict[Cloud, CredentialProvider] = {
            "ecr": EcrProvider(session, environment, wall_clock=wall_clock),
            "gcp": GoogleProvider(session, environment),
            "acr": AzureProvider(session, environment),
        }
        parts += [ProviderKeyring(providers[cloud], key=key, clock=clock) for cloud in dict.fromkeys(clouds)]
        yield JoinedKeyring(parts)
