"""The server side of TLS: a context from certificate files, renewed when the files change.

A client CA cannot be taken out of a context again (`load_verify_locations` only adds), so each change of a file makes
a fresh context, and the listening one hands every new handshake over to it.
"""

import asyncio
import hashlib
import ssl
from pathlib import Path

import structlog

from extender.errors import ConfigError
from extender.metrics import counter

log = structlog.get_logger()

RELOADS = counter(
    "multiarch_tls_reloads_total",
    "Changes of certificate files, by what became of them.",
    "outcome",
    ("loaded", "refused"),
)


class TlsFiles:
    """Certificate, key and, where clients must show one too, the authority of their certificates.

    Raises:
        ConfigError: a file cannot be read, or they do not fit together.
    """

    def __init__(self, name: str, certificate: str, key: str, client_ca: str) -> None:
        self._name = name
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._fingerprint = self._read_fingerprint()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # No resumption: a ticket from before a change would let in a client that the new authority does not know.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_ca:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as exc:
            files = ", ".join(filter(None, (self._certificate, self._key, self._client_ca)))
            raise ConfigError(
                f"{self._name}.tls: {files}: {exc.strerror or exc}; give readable PEM files that fit"
            ) from exc
        return context

    def _read_fingerprint(self) -> bytes:
        hashed = hashlib.sha256()
        for file in filter(None, (self._certificate, self._key, self._client_ca)):
            try:
                content = Path(file).read_bytes()
            except OSError as exc:
                raise ConfigError(f"{self._name}.tls: {file}: {exc.strerror}; give a readable PEM file") from exc
            hashed.update(hashlib.sha256(content).digest())
        return hashed.digest()

    def reload_if_changed(self) -> bool:
        """Serve new handshakes with what the files hold now; a half-written change is left for the next look."""
        try:
            fingerprint = self._read_fingerprint()
            if fingerprint == self._fingerprint:
                return False
            self._current = self._load()
        except ConfigError as exc:
            RELOADS["refused"].inc()
            log.warning("tls.refused", listener=self._name, why=str(exc))
            return False
        self._fingerprint = fingerprint
        RELOADS["loaded"].inc()
        log.info("tls.reloaded", listener=self._name)
        return True

    async def watch(self, every_seconds: float) -> None:
        """Look at the files again and again until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self.reload_if_changed)
