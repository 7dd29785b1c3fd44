"""The operator's credentials as one keyring: a Docker configuration, credential-provider plugins, cloud identities.

Their order is the kubelet's: files, then plugins. Cloud identities come last, since the kubelet no longer supports
them itself.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pkgutil import resolve_name

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, open_cloud_session
from extender.credentials.docker_config import CredentialHelpers, load_docker_config
from extender.credentials.keyring import JoinedKeyring, Keyring
from extender.credentials.kubelet_plugins import CredentialPlugin, load_credential_plugins
from extender.credentials.provider_specs import AskedBy, CloudSpec, HelpersSpec, PluginSpec, ProviderSpec, asked_here
from extender.credentials.providers import LoginProvider, ProviderKeyring
from extender.credentials.watched_keyring import WatchedKeyring
from extender.errors import ConfigError
from extender.watched_files import FileWatcher


@contextlib.asynccontextmanager
async def open_operator_keyring(  # noqa: PLR0913 - settings and parts, each by its name
    *,
    docker_config: str,
    plugin_config: str,
    plugin_dir: str,
    clouds: Sequence[Cloud],
    environment: Mapping[str, str],
    key: bytes,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    watcher: FileWatcher,
    asked_by: AskedBy = asked_here,
) -> AsyncIterator[Keyring]:
    """Opens the keyring until the context is left. An empty path or list leaves its part out.

    `environment` has the variables that a cloud's webhook sets in our pod. Requests to clouds go without a proxy and
    without an address guard, since metadata servers have link-local addresses. This is safe because no pod can choose
    where they go. `watcher` gets the files to watch. `asked_by` decides which process asks plugins, helpers and clouds.

    Raises:
        ConfigError: one of the files cannot be used.
    """
    of_files: list[WatchedKeyring] = []
    if docker_config:
        of_files.append(load_docker_config(docker_config, key=key, clock=clock, asked_by=asked_by))
    if bool(plugin_config) != bool(plugin_dir):
        raise ConfigError("registry.credential_providers: config and bin_dir are needed together")
    if plugin_config:
        of_files.append(load_credential_plugins(plugin_config, plugin_dir, key=key, clock=clock, asked_by=asked_by))
    for part in of_files:
        watcher.add(part.files)
    parts: list[Keyring] = [*of_files]
    async with open_cloud_session() as session:
        access = CloudAccess(session, environment, wall_clock)
        for cloud in dict.fromkeys(clouds):
            provider = asked_by(CloudSpec(cloud), open_cloud(cloud, access))
            parts.append(ProviderKeyring(provider, key=key, clock=clock))
        yield JoinedKeyring(parts)


def provider_of(spec: ProviderSpec, access: CloudAccess) -> LoginProvider:
    """Returns the provider that another process has made from the same `spec`."""
    match spec:
        case PluginSpec():
            return CredentialPlugin(spec.plugin, spec.bin_dir, timeout_seconds=spec.timeout_seconds)
        case HelpersSpec():
            return CredentialHelpers(spec.helpers, spec.store)
        case CloudSpec():
            return open_cloud(spec.cloud, access)


def open_cloud(cloud: Cloud, access: CloudAccess) -> LoginProvider:
    """Returns the provider that the cloud is declared with."""
    provider: Callable[[CloudAccess], LoginProvider] = resolve_name(cloud.provider)
    return provider(access)
