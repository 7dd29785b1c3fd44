"""Opens what asks registries and credential providers: in the fetcher, and in the process of a command.

The service has the same from `fetcher_client`, and nothing of it in its own process.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import TypeAlias

from extender.background import FILE_CHECK_SECONDS, in_background
from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import Credential
from extender.credentials.operator_keyring import OperatorKeyring, open_operator_keyring
from extender.errors import ConfigError
from extender.fetcher.looker import Looker
from extender.fetcher.messages import Failed, Look, SeenImage
from extender.images.reference import ImageReference
from extender.machine import Machine
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session
from extender.registry.image_description import RegistryImages
from extender.registry.mirror_failover import MirrorCredentials
from extender.registry.mirror_files import MirrorFiles
from extender.watched_files import FileWatcher

ImageListener: TypeAlias = Callable[[ImageReference, Endpoint, str], None]
_ASKED_FOR: ContextVar[ImageReference | None] = ContextVar("asked for", default=None)
"""Of whose parts the requests of this task are."""


class LocalSources(Looker):
    """Asks registries and credential providers in this process."""

    is_ready = True  # settings that cannot be used have not been opened

    async def list_tags(self, look: Look) -> list[str]:
        """Returns the tags of the image's repository, as the registry orders them. Raises RegistryError."""
        return await self.ask(look, partial(self.registry.fetch_tags, look.reference))

    async def check(self) -> None:
        """Returns."""


class ListeningSources(LocalSources):
    """The same, for whoever listens to what each endpoint answers."""

    async def look(self, look: Look) -> SeenImage | Failed:
        """As `Looker` has it."""
        _ASKED_FOR.set(look.reference)
        return await super().look(look)


@contextlib.asynccontextmanager
async def open_local_sources(
    settings: RegistryConfig,
    id_key: bytes = b"",
    *,
    machine: Machine,
    patience_seconds: float | None = None,
    on_answer: ImageListener | None = None,
) -> AsyncIterator[LocalSources]:
    """Opens the files that the settings name, and watches them until the context is left; sends no request yet.

    `id_key` and `patience_seconds` as in `OperatorKeyring`. `on_answer` receives what each endpoint answered, and for
    the look at which image.

    Raises:
        ConfigError: a file or a value cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            sources = await _open(settings, id_key, machine, patience_seconds, on_answer, stack)
        except ConfigError:
            raise
        except Exception as exc:  # whose text may have a secret of the environment, such as a proxy's password
            raise ConfigError(f"what asks registries cannot be opened: {type(exc).__name__}") from exc
        yield sources


async def _open(
    settings: RegistryConfig,
    id_key: bytes,
    machine: Machine,
    patience_seconds: float | None,
    on_answer: ImageListener | None,
    stack: contextlib.AsyncExitStack,
) -> LocalSources:
    def listen(endpoint: Endpoint, said: str) -> None:
        if on_answer and (reference := _ASKED_FOR.get()):
            on_answer(reference, endpoint, said)

    watcher = FileWatcher()
    guard = AddressGuard(allow=settings.allow, deny=settings.deny, private_addresses=settings.private_addresses)
    trust = RegistryTrust(settings.ca_files)
    if settings.ca_files:
        watcher.add(trust.files)
    mirrors: MirrorFiles | None = None
    if settings.mirrors:
        mirrors = MirrorFiles(settings.mirrors, ca_files=settings.ca_files)
        watcher.add(mirrors.files)
    session = await stack.enter_async_context(open_session(trust=trust, guard=guard))
    operator = await stack.enter_async_context(
        open_operator_keyring(
            docker_config=settings.docker_config,
            plugin_config=settings.credential_providers.config,
            plugin_dir=settings.credential_providers.bin_dir,
            clouds=settings.clouds,
            id_key=id_key,
            environment=os.environ,
            machine=machine,
            watcher=watcher,
            patience_seconds=patience_seconds,
        )
    )
    registry = RegistryImages(
        session,
        timeout_seconds=settings.timeout_seconds,
        plain_http=frozenset(settings.plain_http),
        machine=machine,
        mirrors=mirrors,
        mirror_credentials=_for_mirrors(operator, mirrors),
        guard=guard,
        on_answer=listen if on_answer else None,
    )
    await stack.enter_async_context(in_background(watcher.run(FILE_CHECK_SECONDS), "registry-files"))
    return (ListeningSources if on_answer else LocalSources)(registry, operator)


def _for_mirrors(operator: OperatorKeyring, mirrors: MirrorFiles | None) -> MirrorCredentials:
    """Returns what gives a mirror's credentials: those of the nodes' own file, then the operator's.

    No pod's, since a mirror's answers serve every pod.
    """

    async def credentials(reference: ImageReference) -> tuple[Credential, ...]:
        of_nodes = mirrors.credentials_for(reference) if mirrors else ()
        return (*of_nodes, *await operator.load(reference))

    return credentials
