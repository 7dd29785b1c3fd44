"""The server side of TLS: a context from certificate files, renewed when the files change.

A client CA cannot be removed from a context (`load_verify_locations` only adds). Each change of a file therefore makes
a new context, and the listening context passes every new handshake to it.
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
    """A TLS context from a certificate, its key and the authority of client certificates (empty if none is required).

    Raises:
        ConfigError: a file cannot be read, or the files do not fit together.
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
        # No resumption: a ticket from before a change would admit a client whose certificate the new authority refuses.
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
        """Uses the files' current content for new handshakes; returns whether it changed.

        Keeps the old context if the files do not fit, for example in the middle of a change; the next call tries again.
        """
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
        """Calls `reload_if_changed` every `every_seconds` until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self.reload_if_changed)
