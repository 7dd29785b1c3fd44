"""Opens what asks registries and credential providers: in the fetcher, and in the process of a command.

The service has the same from `fetcher_client`, and nothing of it in its own process.
"""

import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator

from extender.background import FILE_CHECK_SECONDS, in_background
from extender.config.registry_section import RegistryConfig
from extender.credentials.cloud_api import CloudAccess, open_cloud_session
from extender.credentials.keyring import Credential
from extender.credentials.operator_keyring import open_operator_keyring, provider_of
from extender.credentials.provider_specs import ProviderSpec
from extender.credentials.providers import LoginProvider, ProvidedCredentials
from extender.errors import ConfigError
from extender.images.platform import Platform
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.http import open_session
from extender.registry.image import RegistryImages
from extender.registry.mirror_failover import Heard, MirrorCredentials, nobody, unheard
from extender.registry.mirror_files import MirrorFiles
from extender.registry.openshift import OpenShiftMirrors
from extender.registry.registry_client import RegistryClient
from extender.verifier.verification import Verification
from extender.watched_files import FileWatcher

Mirrors = MirrorFiles | OpenShiftMirrors


class LocalSources(RegistryImages):
    """Asks registries and providers in this process. `registry` is the client, for what the service does not ask."""

    def __init__(self, registry: RegistryClient, access: CloudAccess, mirrors: Mirrors | None) -> None:
        super().__init__(registry)
        self.registry = registry
        self._mirrors = mirrors
        self._access = access

    async def verify(
        self, reference: ImageReference, platform: Platform, credential: Credential, *, tenant: str, seconds: float
    ) -> Verification:
        """As `PlatformSource`. Imports what reads layers: most processes never do."""
        from extender.fetcher.image_verifier import ImageVerifier

        return await ImageVerifier(self.registry, reference, platform, credential, tenant).verify(seconds)

    async def provide(self, spec: ProviderSpec, repository: str) -> ProvidedCredentials:
        """Returns what the provider has for the repository. Raises CredentialsUnavailable."""
        return await provider_of(spec, self._access).provide(repository)

    def provider_from_here(self, _spec: ProviderSpec, provider: LoginProvider) -> LoginProvider:
        """Returns the provider itself, which is asked here."""
        return provider

    def tell_mirrors(self, objects: MirrorObjects) -> None:
        """Goes by what OpenShift's objects say from the next question on, if the settings say so."""
        if isinstance(self._mirrors, OpenShiftMirrors):
            self._mirrors.update(objects)

    is_ready = True  # settings that cannot be used have not been opened

    async def check(self) -> None:
        """Returns."""


@contextlib.asynccontextmanager
async def open_local_sources(settings: RegistryConfig, heard: Heard = unheard) -> AsyncIterator[LocalSources]:
    """Opens the files that the settings name, and watches them until the context is left; sends no request yet.

    `heard` is told what each endpoint answered.

    Raises:
        ConfigError: a file or a value cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            sources = await _open(settings, heard, stack)
        except ConfigError:
            raise
        except Exception as exc:  # whose text may have a secret of the environment, such as a proxy's password
            raise ConfigError(f"what asks registries cannot be opened: {type(exc).__name__}") from exc
        yield sources


async def _open(settings: RegistryConfig, heard: Heard, stack: contextlib.AsyncExitStack) -> LocalSources:
    watcher = FileWatcher()
    guard = AddressGuard(allow=settings.allow, deny=settings.deny, private_addresses=settings.private_addresses)
    trust = RegistryTrust(settings.ca_files)
    if settings.ca_files:
        watcher.add(trust.files)
    mirrors: Mirrors | None = None
    if settings.mirrors_of_openshift:
        mirrors = OpenShiftMirrors(trust)
    elif settings.mirrors:
        mirrors = MirrorFiles(settings.mirrors, ca_files=settings.ca_files)
        watcher.add(mirrors.files)
    session = await stack.enter_async_context(open_session(trust=trust, guard=guard))
    mirror_credentials: MirrorCredentials = nobody
    if mirrors:  # the operator's alone, since a mirror's answers serve every pod
        keyring = open_operator_keyring(
            docker_config=settings.docker_config,
            plugin_config=settings.credential_providers.config,
            plugin_dir=settings.credential_providers.bin_dir,
            clouds=settings.clouds,
            environment=os.environ,
            key=secrets.token_bytes(32),  # its ids stay here
            clock=time.monotonic,
            wall_clock=time.time,
            watcher=watcher,
        )
        mirror_credentials = _before((await stack.enter_async_context(keyring)).load, mirrors)
    clouds = await stack.enter_async_context(open_cloud_session())
    registry = RegistryClient(
        session,
        timeout_seconds=settings.timeout_seconds,
        plain_http=frozenset(settings.plain_http),
        mirrors=mirrors,
        mirror_credentials=mirror_credentials,
        guard=guard,
        heard=heard,
    )
    await stack.enter_async_context(in_background(watcher.run(FILE_CHECK_SECONDS), "registry-files"))
    return LocalSources(registry, CloudAccess(clouds, os.environ, time.time), mirrors)


def _before(load: MirrorCredentials, mirrors: Mirrors) -> MirrorCredentials:
    """Returns `load` with the credentials that the nodes' own file has before the others."""

    async def credentials(reference: ImageReference) -> tuple[Credential, ...]:
        return (*mirrors.credentials_for(reference), *await load(reference))

    return credentials
