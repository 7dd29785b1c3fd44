"""The webhook's certificate and authority, looked after by the service itself.

They are in a Secret that the replicas share. Their leader renews it and writes the webhook's configuration; each
replica copies it into files, which its listener reads again when they change.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import structlog

from extender.background import in_background
from extender.certificates.authority import InvalidCertificate
from extender.certificates.managed_identity import (
    IdentityLifetimes,
    ManagedIdentity,
    from_secret_data,
    is_ours,
    new_identity,
    renew,
    to_secret_data,
)
from extender.cluster.client import ClusterClient
from extender.cluster.leader_election import LeaderElection
from extender.cluster.own_secret import OwnSecret, SecretContent
from extender.cluster.webhook_configuration import WebhookConfiguration
from extender.config.tree import Config, SelfManagedConfig
from extender.errors import ClusterError, ConfigError

log = structlog.get_logger()

LOOK_SECONDS = 3.0
# OSError: the files cannot be written for now. All of these are tried again at the next look.
_PASSING = (ClusterError, InvalidCertificate, OSError)
START_SECONDS = 60.0
# Lives of an authority: two years with certificates of 90 days. The next one is trusted beside it for long before it
# signs anything, and a year or more passes between changes of the webhook's configuration.
_CERTIFICATES_OF_AN_AUTHORITY = 8


class ManagedFiles(msgspec.Struct, frozen=True):
    """The files that hold what the Secret has; all of them change at the same moment."""

    certificate: str
    key: str


class SelfManaged:
    """Follows the Secret, and renews it while this replica leads. `folder` is for its files alone.

    `configurations` are told the authority. `names` are the DNS names and IP addresses of the server. `wall_clock`
    gives seconds since 1970.
    """

    def __init__(
        self,
        secret: OwnSecret,
        configurations: Sequence[WebhookConfiguration],
        *,
        names: Sequence[str],
        lifetimes: IdentityLifetimes,
        folder: Path,
        wall_clock: Callable[[], float],
    ) -> None:
        self._secret = secret
        self._configurations = tuple(configurations)
        self._names = tuple(names)
        self._lifetimes = lifetimes
        self._folder = folder
        self._wall_clock = wall_clock
        self._version = ""
        self._failure = "no replica has made them yet"
        self.is_there = asyncio.Event()
        current = folder / "current"
        self.files = ManagedFiles(str(current / "tls.crt"), str(current / "tls.key"))

    @property
    def failure(self) -> str:
        """Why there are no files yet, or why the last look failed; empty if it did not."""
        return self._failure

    async def follow(self) -> None:
        """Copies the Secret into the files whenever it has changed, until cancelled."""
        while True:
            try:
                self._copy(await self._secret.read())
            except _PASSING as exc:
                self._note_failure(exc)
            await asyncio.sleep(LOOK_SECONDS)

    async def lead(self) -> None:
        """Renews what is due, and publishes it, until cancelled."""
        while True:
            try:
                await self._look_after()
            except _PASSING as exc:
                self._note_failure(exc)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_after(self) -> None:
        content = await self._secret.read()
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        identity = self._renewed(content, now)
        data = to_secret_data(identity)
        if not data.items() <= dict(content.data).items():
            content = await self._secret.write(data, content.version)
            log.info("certificates.renewed", authorities=len(identity.authorities))
        self._copy(content)
        for each in self._configurations:
            if await each.publish(identity.bundle):
                log.info("certificates.published", configuration=each.name)

    def _renewed(self, content: SecretContent, now: datetime) -> ManagedIdentity:
        """What the Secret should have now. Raises InvalidCertificate for a Secret that is not ours to change."""
        if not content.data:
            return new_identity(self._names, self._lifetimes, now)
        try:
            return renew(from_secret_data(content.data), self._names, self._lifetimes, now)
        except InvalidCertificate as exc:
            if not is_ours(content.data):
                raise InvalidCertificate(f"the Secret is not one of ours, and is left as it is: {exc}") from exc
            log.warning("certificates.damaged", why=str(exc))
            return new_identity(self._names, self._lifetimes, now)

    def _copy(self, content: SecretContent) -> None:
        """Writes the files anew if the Secret has changed. Raises InvalidCertificate, and changes nothing then."""
        if content.version == self._version and self.is_there.is_set():
            self._failure = ""
            return
        if not content.data:
            return
        identity = from_secret_data(dict(content.data))
        self._write(identity)
        self._version = content.version
        self._failure = ""
        self.is_there.set()

    def _write(self, identity: ManagedIdentity) -> None:
        """Writes all files into a new folder, and puts that in the place of the last one in one step."""
        made = Path(tempfile.mkdtemp(dir=self._folder))
        current, link = self._folder / "current", self._folder / "next"
        before = current.resolve() if current.exists() else None
        try:
            for name, content in (("tls.crt", identity.serving.certificate), ("tls.key", identity.serving.key)):
                with os.fdopen(os.open(made / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
            link.unlink(missing_ok=True)
            link.symlink_to(made.name)
            link.replace(current)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            raise
        if before:
            shutil.rmtree(before, ignore_errors=True)

    def _note_failure(self, exc: Exception) -> None:
        if str(exc) != self._failure:
            log.warning("certificates.failed", why=str(exc))
        self._failure = str(exc)


@contextlib.asynccontextmanager
async def with_managed_files(config: Config, client: ClusterClient | None) -> AsyncIterator[Config]:
    """The configuration, with files for what the service is to look after itself; they are kept current meanwhile.

    Raises:
        ConfigError: there was no certificate within a minute.
    """
    tls = config.admission.tls
    if client is None or tls is None or not (config.admission.listen and tls.self_managed):
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="multiarch-extender-") as folder:
        managed = _open(config.admission.self_managed, client, Path(folder))
        election = LeaderElection(
            client,
            namespace=client.namespace,
            name=config.admission.self_managed.secret,
            identity=f"{socket.gethostname()}_{secrets.token_hex(4)}",
            clock=time.monotonic,
            wall_clock=time.time,
        )
        async with (
            in_background(managed.follow(), "certificates"),
            in_background(election.run(managed.lead), "certificates-leader"),
        ):
            try:
                await asyncio.wait_for(managed.is_there.wait(), START_SECONDS)
            except TimeoutError:
                raise ConfigError(
                    f"admission.tls.self_managed: no certificate in a minute: {managed.failure}"
                ) from None
            files = managed.files
            managed_tls = msgspec.structs.replace(tls, certificate=files.certificate, key=files.key)
            admission = msgspec.structs.replace(config.admission, tls=managed_tls)
            yield msgspec.structs.replace(config, admission=admission)


def _open(config: SelfManagedConfig, client: ClusterClient, folder: Path) -> SelfManaged:
    certificate = timedelta(days=config.certificate_days)
    return SelfManaged(
        OwnSecret(client, client.namespace, config.secret),
        [WebhookConfiguration(client, name) for name in config.configurations],
        names=tuple(_names_of(config.names, client.namespace)),
        lifetimes=IdentityLifetimes(authority=_CERTIFICATES_OF_AN_AUTHORITY * certificate, certificate=certificate),
        folder=folder,
        wall_clock=time.time,
    )


def _names_of(names: Iterable[str], namespace: str) -> Iterator[str]:
    """The names, and after one that may be a Service of the namespace those by which the API server calls it."""
    for name in names:
        yield name
        if "." not in name and ":" not in name:
            yield from (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local")
