"""The webhook's own certificate, which each replica of the service maintains: no one of them leads.

They share a Secret, which is written with the version that was read: the API server refuses all but the first writer.
Each replica also writes the webhook's configuration, where that does not list what is in the Secret, and copies what it
serves into a file, which its listener reads again when it changes.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from extender.background import in_background
from extender.certificates.own_certificate import (
    InvalidCertificate,
    KeyPair,
    OwnCertificates,
    expires_at,
    from_secret_data,
    is_ours,
    make_certificate,
    to_secret_data,
)
from extender.certificates.server_names import names_of_server
from extender.cluster.client import (
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    ClusterClient,
    ClusterRefused,
)
from extender.config.tree import Config, TlsConfig
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.api_groups import (
    WEBHOOK_CONFIGURATIONS,
    MutatingWebhook,
    MutatingWebhookConfiguration,
    WebhookClientConfig,
)
from extender.kubernetes.core_v1 import OpaqueSecret
from extender.machine import Machine
from extender.server.operations import CheckResult

log = structlog.get_logger()

LIFETIME = timedelta(days=90)
"""Of a certificate. The next one is made and trusted when half of it is over, and served when two thirds are."""
RECONCILE_SECONDS = 30.0  # between two reconciliations, each a GET of the Secret and one of the configuration
_FIRST_RETRY_SECONDS = 1.0  # doubles up to `RECONCILE_SECONDS` while something fails or is missing
START_SECONDS = 60.0
_PUBLISHED_SECONDS = 30.0  # within which API servers go by the configuration that they were given

T = TypeVar("T")
_SECRET = msgspec.json.Decoder(OpaqueSecret)
_CONFIGURATION = msgspec.json.Decoder(MutatingWebhookConfiguration)


class SelfManaged:
    """Keeps the Secret, the webhook's configuration and `file` current while `run` runs.

    Needs the verbs get and patch on the Secret and the configuration, and create on secrets in its namespace unless
    the Secret exists. `file` gets certificate and key. `clock` gives monotonic seconds, `wall_clock` those since 1970.
    """

    def __init__(
        self,
        client: ClusterClient,
        tls: TlsConfig,
        file: Path,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._tls = tls
        self._secrets = f"/api/v1/namespaces/{client.namespace}/secrets"
        self._names = names_of_server(tls.self_managed, client.namespace)
        self.file = file
        self._clock = clock
        self._wall_clock = wall_clock
        self._served: KeyPair | None = None
        self._published_at: float | None = None  # since when the configuration has listed what it is to list
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self.failure = "the API server has not answered yet"
        """Why the last reconciliation failed; empty if it did not."""
        self.is_made = asyncio.Event()

    def check(self) -> CheckResult:
        """When the certificate that is served ends, or why the last reconciliation failed."""
        until = f"it ends {expires_at(self._served.certificate):%Y-%m-%d}" if self._served else "there is none yet"
        return CheckResult(ok=not self.failure, detail="; ".join(filter(None, (self.failure, until))))

    async def run(self) -> None:
        """Reconciles until cancelled, also after failures."""
        while True:
            seconds = await self.reconcile()
            await asyncio.sleep(seconds)

    async def reconcile(self) -> float:
        """Does what is to be done now; returns the seconds until the next time."""
        is_settled, failure = False, self.failure
        try:
            own = await self._read_and_renew()
            try:
                is_settled = await self._publish(own.bundle)
            finally:  # a configuration that cannot be written is no reason not to serve
                self._serve(own)
            failure = ""
        except ClusterRefused as exc:
            failure = failure if exc.status == 409 else str(exc)  # another replica was quicker
        except (ClusterError, InvalidCertificate, OSError) as exc:  # OSError: the file cannot be written for now
            failure = str(exc)
        if failure and failure != self.failure:
            log.warning("certificates.failed", why=failure)
        self.failure = failure
        if is_settled and not failure:
            self._retry_seconds = _FIRST_RETRY_SECONDS
            return RECONCILE_SECONDS
        seconds, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, RECONCILE_SECONDS)
        return seconds

    async def _read_and_renew(self) -> OwnCertificates:
        """What the Secret has, after it was renewed where that is due."""
        secret, now = await self._client.find(f"{self._secrets}/{self._tls.identity_secret}", _SECRET), self._now()
        before = _own_in(secret)
        if before:
            own = before.renewed(self._names, LIFETIME, now)
        else:
            own = OwnCertificates(make_certificate(self._names, now, LIFETIME))
        if own is not before:
            await self._write_secret(own, secret)
            log.info("certificates.renewed", names=self._names)
        return own

    async def _write_secret(self, own: OwnCertificates, before: OpaqueSecret | None) -> None:
        data = to_secret_data(own)
        if before is None:
            data = {key: value for key, value in data.items() if value is not None}
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._tls.identity_secret},
                "data": data,
            }
            await self._client.send("POST", self._secrets, msgspec.json.encode(made))
        else:
            metadata = {"resourceVersion": before.metadata.resource_version}
            body = msgspec.json.encode({"metadata": metadata, "data": data})
            await self._client.send("PATCH", f"{self._secrets}/{self._tls.identity_secret}", body, MERGE_PATCH)

    async def _publish(self, bundle: bytes) -> bool:
        """Makes each webhook of the configuration trust `bundle`; returns whether the configuration is there."""
        trusting, published_at = WebhookClientConfig(ca_bundle=bundle), self._published_at
        self._published_at = None
        path = f"{WEBHOOK_CONFIGURATIONS}/{self._tls.service}"
        found = await self._client.find(path, _CONFIGURATION)
        webhooks = (found and found.webhooks) or ()
        changed = [MutatingWebhook(each.name, trusting) for each in webhooks if each.client_config.ca_bundle != bundle]
        if found and changed:  # the API server merges them by name, so that those of other fields stay as they are
            body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "webhooks": changed}
            await self._client.send("PATCH", path, msgspec.json.encode(body), STRATEGIC_MERGE_PATCH)
            log.info("certificates.published", configuration=self._tls.service)
            published_at = None
        self._published_at = self._clock() if published_at is None else published_at
        return found is not None

    def _serve(self, own: OwnCertificates) -> None:
        """Writes what is to be served into the file, in one step, if that is another than before."""
        is_published = self._published_at is not None and self._clock() >= self._published_at + _PUBLISHED_SECONDS
        served = own.served(self._names, self._now(), published=is_published)
        if served == self._served:
            return
        made = self.file.with_suffix(".new")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(served.certificate + served.key)
        made.replace(self.file)
        self._served = served
        self.is_made.set()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock(), UTC)


def _own_in(secret: OpaqueSecret | None) -> OwnCertificates | None:
    """What the Secret has; None if that is to be made. Raises InvalidCertificate if it is not ours to change."""
    if secret is None or not secret.data:
        return None
    try:
        return from_secret_data(secret.data)
    except InvalidCertificate as exc:
        if not is_ours(secret.data):
            raise InvalidCertificate(f"the Secret is not one of ours, and is left as it is: {exc}") from exc
        log.warning("certificates.damaged", why=str(exc))
        return None


@contextlib.asynccontextmanager
async def open_own_certificate(
    config: Config, client: ClusterClient | None, machine: Machine
) -> AsyncIterator[SelfManaged | None]:
    """Maintains the webhook's certificate beside the context, which begins once there is one; None if it is files.

    Raises:
        ConfigError: there was no certificate within a minute.
    """
    tls = config.admission.tls
    if client is None or tls is None or not (config.admission.listen and tls.self_managed):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="multiarch-extender-") as folder:
        file = Path(folder) / "tls.pem"
        managed = SelfManaged(client, tls, file, clock=machine.clock, wall_clock=machine.wall_clock)
        async with in_background(managed.run(), "certificates"):
            try:
                await asyncio.wait_for(managed.is_made.wait(), START_SECONDS)
            except TimeoutError:
                raise ConfigError(
                    f"admission.tls.self_managed: no certificate in a minute: {managed.failure}"
                ) from None
            yield managed
