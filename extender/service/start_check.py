"""What would keep `serve` from starting: opens what it opens at its start, and closes it again."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from extender.config.tree import Config
from extender.credentials.kubelet_plugins import plugin_programs
from extender.errors import ConfigError
from extender.fetcher.sources import open_local_sources
from extender.machine import THIS_MACHINE
from extender.service.cluster_view import open_cluster_view
from extender.service.compose import open_tls
from extender.service.resolving import open_cache_files
from extender.store.url import SQLITE, default_store_url


async def check_start(config: Config) -> list[str]:
    """Opens every file that the settings name, and the configuration of the cluster.

    Listens nowhere, and asks no cluster, registry or store. A kubeconfig's credential plugin runs, as at a start.
    Returns warnings: what `serve` starts with and cannot use.

    Raises:
        ConfigError: a file cannot be used, or there is no cluster; the message has a line for each.
    """
    problems: list[str] = []
    try:
        open_tls(config)
    except ConfigError as exc:
        problems += exc.problems
    view = open_cluster_view(config, THIS_MACHINE)
    contexts: tuple[AbstractAsyncContextManager[object], ...] = (_open_sources(config), view)
    for context in contexts:
        try:
            async with context:
                pass
        except ConfigError as exc:
            problems += exc.problems
    if problems:
        raise ConfigError(*problems)
    return [*_missing_programs(config), *_unwritable_store(config)]


@contextlib.asynccontextmanager
async def _open_sources(config: Config) -> AsyncIterator[None]:
    async with open_local_sources(config.registry, machine=THIS_MACHINE):
        open_cache_files(config, THIS_MACHINE)
        yield


def _missing_programs(config: Config) -> Iterator[str]:
    providers = config.registry.credential_providers
    programs = plugin_programs(providers.config, providers.bin_dir) if providers.config else ()
    for program in programs:
        if not (os.access(program, os.X_OK) and Path(program).is_file()):
            where = f"registry.credential_providers.bin_dir: {program}"
            yield f"{where} is no program that can be run, so its registries are asked without it"


def _unwritable_store(config: Config) -> Iterator[str]:
    url = config.cache.url or default_store_url(os.environ)
    if not url.startswith(SQLITE):
        return
    path = Path(url.removeprefix(SQLITE))
    folder = next(parent for parent in path.parents if parent.exists())  # the store makes those that are missing
    if not (os.access(path if path.exists() else folder, os.W_OK) and folder.is_dir()):
        yield f"cache.url: {url} cannot be written, so nothing outlives a restart; name a file in a writable folder"
