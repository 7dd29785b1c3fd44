"""Opens what resolves images: the cache, its store and pods' secrets, over what asks registries."""

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from extender.background import FILE_CHECK_SECONDS, in_background
from extender.cluster.secrets import ClusterSecrets
from extender.config.registry_section import RegistryConfig
from extender.config.tree import CacheConfig, Config
from extender.credentials.keyring import Keyring
from extender.credentials.pull_secrets import PullSecrets
from extender.images.stated import StatedImages
from extender.machine import Machine
from extender.resolver.lookups import Sources
from extender.resolver.persistence import Persistence
from extender.resolver.pod_resolver import PodResolver
from extender.resolver.resolver import Resolver
from extender.service.cluster_view import ClusterView
from extender.service.keys import credential_key
from extender.service.operator_policies import policy_of
from extender.store.rows import Store
from extender.store.url import default_store_url, open_store
from extender.watched_files import FileWatcher

TAG_SECONDS = 900.0
"""How long a tag's digest is fresh; afterwards it is asked for again in the background by HEAD."""
STALE_SECONDS = 86_400.0
"""How long a known answer still serves when the registry cannot be asked."""
LOOKUP_REQUESTS = 6
"""How many slow requests one lookup may wait for: challenge, token, HEAD, GET, configuration, and one in vain."""
LOAD_SECONDS = 0.5  # how long the start waits for the store's rows; the rest is loaded while the service answers


class OpenableSources(Sources, Protocol):
    """What asks registries, and what it receives and reports when the service is opened."""

    @property
    def is_ready(self) -> bool:
        """Whether all files have been opened, so that registries can be asked."""

    async def check(self) -> None:
        """Returns once all files are known to be usable, or cannot be known. Raises ConfigError if one is not."""


class OpenSources(Protocol):
    """Opens what asks registries, by the settings and the hash key of the id for the operator's credentials."""

    def __call__(self, settings: RegistryConfig, id_key: bytes, /) -> AbstractAsyncContextManager[OpenableSources]:
        """Opens it until the context is left."""


class CacheFiles(NamedTuple):
    """Where what is known outlives a restart.

    `store` is None if nothing does. `credential_key` makes the ids of credentials. `watcher` reads the files again that
    hold any of it.
    """

    store: Store | None
    credential_key: bytes
    watcher: FileWatcher


def cache_url_of(cache: CacheConfig) -> str:
    """Where what is known outlives this process; `memory:` for nowhere."""
    return cache.url or default_store_url(os.environ)


def open_cache_files(config: Config, machine: Machine) -> CacheFiles:
    """Opens the files that the settings of the cache name; asks no store yet.

    Raises:
        ConfigError: a file or a value of the configuration cannot be used.
    """
    cache = config.cache
    watcher = FileWatcher()
    store = open_store(cache_url_of(cache), size=cache.size, stale_seconds=STALE_SECONDS, watcher=watcher)
    return CacheFiles(store, credential_key(cache.key_file, machine.token_bytes), watcher)


@contextlib.asynccontextmanager
async def open_pod_resolver(
    sources: OpenableSources, config: Config, cluster_view: ClusterView, machine: Machine
) -> AsyncIterator[PodResolver]:
    """A PodResolver over sources that are open, with credentials, a cache and a store of its own; closes these.

    Raises:
        ConfigError: a file or a value of the configuration cannot be used.
    """
    cache = config.cache
    async with contextlib.AsyncExitStack() as stack:
        opened = open_cache_files(config, machine)
        await stack.enter_async_context(in_background(opened.watcher.run(FILE_CHECK_SECONDS)))
        resolver = Resolver(
            sources,
            size=cache.size,
            tag_seconds=TAG_SECONDS,
            stale_seconds=STALE_SECONDS,
            clock=machine.clock,
            random=machine.random,
            lookup_seconds=LOOKUP_REQUESTS * config.registry.timeout_seconds,
            short_names=config.registry.mirrors_of_crio,
            stated=StatedImages(config.placement.images),
            persistence=(
                Persistence(
                    opened.store,
                    persist_private=bool(cache.key_file),
                    clock=machine.clock,
                    wall_clock=machine.wall_clock,
                )
                if opened.store
                else None
            ),
        )
        stack.push_async_callback(resolver.close)
        await resolver.load(LOAD_SECONDS)
        pull_secrets = (
            PullSecrets(
                ClusterSecrets(cluster_view.client, cluster_view.on_refused_secret).read_logins,
                key=opened.credential_key,
                clock=machine.clock,
            )
            if config.registry.pull_secrets and cluster_view.client
            else None
        )
        yield PodResolver(
            resolver,
            Keyring(operator=lambda: sources.operator_id),
            policy_of(config),
            cluster_view.namespace_annotations,
            cluster_view.watch_pending_pods,
            pull_secrets,
            reads_secrets_in=config.registry.reads_secrets_in,
        )
