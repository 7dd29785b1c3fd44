"""Opens what resolves images: the session with registries, the operator's credentials, the cache and its store."""

import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from extender.config.tree import Config
from extender.credentials.keyring import Keyring
from extender.credentials.operator_keyring import open_operator_keyring
from extender.credentials.pull_secrets import PullSecrets
from extender.outlets.pod_resolver import PodResolver
from extender.registry.addresses import AddressGuard
from extender.registry.auth import Authenticator
from extender.registry.client import RegistryClient
from extender.registry.mirrors import HostsDirectory
from extender.registry.session import RegistryTrust, open_session
from extender.resolver.persistence import Persistence
from extender.resolver.resolver import Resolver
from extender.service.background import FILE_CHECK_SECONDS, in_background
from extender.service.client_source import ClientSource
from extender.service.cluster_view import ClusterView
from extender.service.keys import random_keys, watch_keys
from extender.service.policies import policy_of
from extender.store.rows import Store
from extender.store.url import default_store_url, open_store
from extender.watched_files import FileWatcher

LOAD_SECONDS = 0.5  # how long the start waits for the store's rows; the rest is loaded while the service answers


class ImageSources(NamedTuple):
    """Where answers about images come from: a client of registries with the operator's credentials, and a store.

    `store` is None if nothing outlives a restart. `credential_key` makes the ids of credentials. `watcher` reads the
    files again that hold any of it.
    """

    client: RegistryClient
    keyring: Keyring
    store: Store | None
    credential_key: bytes
    watcher: FileWatcher


@contextlib.asynccontextmanager
async def open_image_sources(config: Config) -> AsyncIterator[ImageSources]:
    """Opens the files that the settings of registries and cache name; asks no registry and no store yet.

    Raises:
        ConfigError: a file or a value of the configuration cannot be used.
    """
    registry, cache = config.registry, config.cache
    watcher = FileWatcher()
    keys = random_keys()
    if cache.key_file:
        key_files = watch_keys(cache.key_file)
        watcher.add(key_files)
        keys = key_files.value
    guard = AddressGuard(allow=registry.allow, deny=registry.deny, private_addresses=registry.private_addresses)
    url = cache.url or default_store_url(os.environ)
    store = open_store(url, size=cache.size, stale_seconds=cache.stale_seconds, row_key=keys.rows, watcher=watcher)
    trust = RegistryTrust(registry.ca_files)
    if registry.ca_files:
        watcher.add(trust.files)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(trust=trust, guard=guard))
        mirrors = (
            HostsDirectory(registry.hosts_directory, ca_files=registry.ca_files) if registry.hosts_directory else None
        )
        keyring = await stack.enter_async_context(
            open_operator_keyring(
                docker_config=registry.docker_config,
                plugin_config=registry.credential_providers.config,
                plugin_dir=registry.credential_providers.bin_dir,
                clouds=registry.clouds,
                environment=os.environ,
                key=keys.credential_ids,
                clock=time.monotonic,
                wall_clock=time.time,
                watcher=watcher,
            )
        )
        client = RegistryClient(
            session,
            authenticator=Authenticator(
                session, timeout_seconds=registry.timeout_seconds, clock=time.monotonic, wall_clock=time.time
            ),
            timeout_seconds=registry.timeout_seconds,
            plain_http=frozenset(registry.plain_http),
            mirrors=mirrors,
            mirror_credentials=keyring.load,  # the operator's alone, since a mirror's answers serve every pod
            guard=guard,
        )
        if mirrors:
            watcher.add(mirrors.files)
        yield ImageSources(client, keyring, store, keys.credential_ids, watcher)


@contextlib.asynccontextmanager
async def open_pod_resolver(config: Config, cluster_view: ClusterView) -> AsyncIterator[PodResolver]:
    """A PodResolver with a registry session, credentials, a cache and a store of its own; closes them at the end.

    Raises:
        ConfigError: a file or a value of the configuration cannot be used.
    """
    async with open_image_sources(config) as sources, open_pod_resolver_of(sources, config, cluster_view) as resolver:
        yield resolver


@contextlib.asynccontextmanager
async def open_pod_resolver_of(
    sources: ImageSources, config: Config, cluster_view: ClusterView, *, head_first: bool = True
) -> AsyncIterator[PodResolver]:
    """As `open_pod_resolver`, with sources that are open already; `head_first` as in `Resolver`."""
    cache = config.cache
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(in_background(sources.watcher.run(FILE_CHECK_SECONDS)))
        resolver = Resolver(
            ClientSource(sources.client),
            size=cache.size,
            tag_seconds=cache.tag_seconds,
            always_seconds=config.registry.always_seconds,
            stale_seconds=cache.stale_seconds,
            clock=time.monotonic,
            head_first=head_first,
            lookup_seconds=2 * config.registry.timeout_seconds,
            persistence=Persistence(sources.store, persist_private=bool(cache.key_file), clock=time.monotonic),
        )
        stack.push_async_callback(resolver.close)
        await resolver.load(LOAD_SECONDS)
        pull_secrets = (
            PullSecrets(cluster_view.secrets, key=sources.credential_key, clock=time.monotonic)
            if config.registry.pull_secrets and cluster_view.secrets
            else None
        )
        yield PodResolver(
            resolver,
            sources.keyring,
            policy_of(config),
            cluster_view.namespace_annotations,
            cluster_view.look_at_pending_pods,
            pull_secrets,
        )
