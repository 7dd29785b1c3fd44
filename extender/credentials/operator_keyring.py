"""The operator's credentials: a Docker configuration, credential-provider plugins, clouds.

They are tried in this order. That of files and plugins is the kubelet's, and clouds come last, since the kubelet no
longer supports them itself. Everything here is in the process that asks registries: others know the credentials by one
id.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import NamedTuple

import msgspec
import structlog

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, open_cloud_session
from extender.credentials.docker_config import read_docker_config
from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId, credentials_of
from extender.credentials.kubelet_plugins import read_plugins
from extender.credentials.logins import Login
from extender.credentials.providers import (
    LoginProvider,
    OperatorFile,
    OperatorSource,
    ProviderLogins,
    SourcesFile,
)
from extender.errors import ConfigError
from extender.images.reference import ImageReference
from extender.machine import Machine
from extender.tables import LruTable
from extender.watched_files import FileSetting, FileWatcher, WatchedFiles

log = structlog.get_logger()

_MOST_OPENED = 1024  # repositories, half a megabyte at most


class OperatorCredential(NamedTuple):
    """A credential, and the words for where it comes from."""

    credential: Credential
    label: str


class OperatorKeyring:
    """The operator's credentials, as the files have them now."""

    def __init__(
        self,
        files: Sequence[WatchedFiles[OperatorFile]] = (),
        clouds: Sequence[ProviderLogins] = (),
        *,
        id_key: bytes = b"",
        token_bytes: Callable[[int], bytes],
        patience_seconds: float | None = None,
    ) -> None:
        """`id_key` is the hash key of `id`: equal credentials have the same id under the same key. Empty: a random one.

        `token_bytes` gives so many bytes that nobody can guess. `patience_seconds` is how long one lookup waits for
        providers together; None: for as long as they take. An answer that comes later serves the next lookup.
        """
        self._files = files
        self._clouds = clouds
        self._id_key = id_key or token_bytes(32)
        self._key = token_bytes(32)  # of the ids of single credentials, which stay in this process
        self._patience_seconds = patience_seconds
        self._opened: LruTable[str, CredentialId] = LruTable(_MOST_OPENED)
        self._asking: set[asyncio.Task[tuple[Login, ...]]] = set()

    @property
    def id(self) -> CredentialId:
        """What stands for all of these credentials: another one when a login or the specification of a source changes.

        So a login that was removed opens nothing any more, after a restart too. Empty without any credentials.
        """
        stamps = (*(each.value.stamp for each in self._files), *(each.stamp for each in self._clouds))
        if not stamps:
            return NO_OPERATOR
        parts = msgspec.msgpack.encode(stamps)
        return CredentialId(hashlib.blake2b(parts, key=self._id_key, digest_size=16).hexdigest())

    @property
    def _sources(self) -> tuple[OperatorSource, ...]:
        """The sources in the order to try them."""
        of_files = (source for each in self._files for source in each.value.sources)
        return (*of_files, *self._clouds)

    async def refresh(self) -> bool:
        """Reads files that have changed again. Returns whether one of them had."""
        before = self.id
        for each in self._files:
            await each.refresh()
        return self.id != before

    async def credentials(
        self, reference: ImageReference, silent: set[str]
    ) -> AsyncGenerator[OperatorCredential, None]:
        """Yields the image's credentials: what opened its repository before, then all, source by source.

        A source is asked only when its credentials are wanted, so that one that hangs holds up no image that others
        open. `silent` gets the label of each that gave nothing, for it failed or took too long.
        """
        opened = self._opened.get(reference.repository)
        for source in self._sources if opened else ():
            for credential in self._credentials_of(source.at_hand(reference) or ()):
                if credential.id == opened:
                    yield OperatorCredential(credential, source.label)
        async with contextlib.aclosing(self._loaded(reference, silent)) as found:
            async for each in found:
                yield each

    async def _loaded(self, reference: ImageReference, silent: set[str]) -> AsyncGenerator[OperatorCredential, None]:
        patience, loop = self._patience_seconds, asyncio.get_running_loop()
        for source in self._sources:
            began_at = loop.time()
            logins = await self._load(source, reference, patience)
            if source.at_hand(reference) is None:
                silent.add(source.label)
            if patience is not None:
                patience = max(0.0, patience - (loop.time() - began_at))
            for credential in self._credentials_of(logins):
                yield OperatorCredential(credential, source.label)

    def note_opened(self, reference: ImageReference, credential: Credential) -> None:
        """Remembers which credential opened the repository, which is tried first from now on."""
        self._opened.put(reference.repository, credential.id)

    async def load(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns what the sources have for this image, then `ANONYMOUS`."""
        found = [each.credential async for each in self._loaded(reference, set())]
        return (*dict.fromkeys(found), ANONYMOUS)

    def may_change(self, reference: ImageReference) -> bool:
        """Whether a provider serves the image, which may give another credential when the last one has expired."""
        return any(source.serves(reference) for source in self._sources)

    async def _load(
        self, source: OperatorSource, reference: ImageReference, patience: float | None
    ) -> tuple[Login, ...]:
        """Returns the source's logins; none if it crashes, which is logged, or takes too long."""
        found = source.at_hand(reference)
        if found is not None:
            return found
        asking = asyncio.get_running_loop().create_task(source.load(reference))
        self._asking.add(asking)
        asking.add_done_callback(self._note_asked)
        await asyncio.wait([asking], timeout=patience)
        return () if not asking.done() or asking.exception() else asking.result()

    def _credentials_of(self, logins: Sequence[Login]) -> tuple[Credential, ...]:
        return credentials_of(logins, key=self._key)

    def _note_asked(self, asking: "asyncio.Task[tuple[Login, ...]]") -> None:
        self._asking.discard(asking)
        error = None if asking.cancelled() else asking.exception()
        if error:
            # Neither message nor traceback: an exception may quote its input.
            log.error("keyring.crashed", kind="operator", why=type(error).__name__)

    async def close(self) -> None:
        """Ends what is being asked."""
        asking = list(self._asking)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_operator_keyring(  # noqa: PLR0913 - settings and parts, each by its name
    *,
    docker_config: str,
    plugin_config: str,
    plugin_dir: str,
    clouds: Sequence[Cloud],
    id_key: bytes,
    environment: Mapping[str, str],
    machine: Machine,
    watcher: FileWatcher,
    patience_seconds: float | None = None,
) -> AsyncIterator[OperatorKeyring]:
    """Opens the keyring until the context is left. An empty path or list leaves its part out.

    `environment` has the variables that a cloud's webhook sets in our pod. Requests to clouds go without a proxy and
    without an address guard, since metadata servers have link-local addresses. This is safe because no pod can choose
    where they go. `watcher` gets the files to watch. `id_key` and `patience_seconds` as in
    `OperatorKeyring`.

    Raises:
        ConfigError: one of the files cannot be used.
    """
    files: list[WatchedFiles[OperatorFile]] = []
    if docker_config:
        docker = SourcesFile(partial(read_docker_config, docker_config), clock=machine.clock)
        files.append(WatchedFiles.of(FileSetting.DOCKER_CONFIG, [docker_config], docker.load))
    if bool(plugin_config) != bool(plugin_dir):
        raise ConfigError("registry.credential_providers: config and bin_dir are needed together")
    if plugin_config:
        plugins = SourcesFile(partial(read_plugins, plugin_config, plugin_dir), clock=machine.clock)
        files.append(WatchedFiles.of(FileSetting.CREDENTIAL_PROVIDERS, [plugin_config], plugins.load))
    for each in files:
        watcher.add(each)
    async with open_cloud_session() as session:
        access = CloudAccess(session, environment, machine.wall_clock)
        of_clouds = [ProviderLogins(open_cloud(cloud, access), clock=machine.clock) for cloud in dict.fromkeys(clouds)]
        keyring = OperatorKeyring(
            files, of_clouds, id_key=id_key, token_bytes=machine.token_bytes, patience_seconds=patience_seconds
        )
        try:
            yield keyring
        finally:
            await keyring.close()


def open_cloud(cloud: Cloud, access: CloudAccess) -> LoginProvider:
    """Returns the provider that the cloud is declared with."""
    provider: Callable[[CloudAccess], LoginProvider] = resolve_name(cloud.provider)
    return provider(access)
