"""The server side of TLS: a context from certificate files, renewed when the files change.

A client CA cannot be removed from a context (`load_verify_locations` only adds). Each change of a file therefore makes
a new context, and the listening context passes every new handshake to it.
"""

import ssl

from extender.certificates.own_certificate import InvalidCertificate, expires_at
from extender.errors import ConfigError
from extender.metrics import gauge_of
from extender.regular_files import read_file
from extender.watched_files import FileSetting, WatchedFiles

_EXPIRES: dict[str, float] = {}
gauge_of(
    "multiarch_certificate_expiry_timestamp_seconds",
    "When the certificate that a listener serves ends.",
    "listener",
    _EXPIRES.copy,
)


class TlsFiles:
    """A TLS context from a certificate, its key and the authority of client certificates (empty if none is required).

    Raises:
        ConfigError: a file cannot be read, or the files do not fit together.
    """

    def __init__(self, name: str, certificate: str, key: str, client_ca: str) -> None:
        self._name = name
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        paths = tuple(filter(None, (certificate, key, client_ca)))
        self._paths = paths
        self.files = WatchedFiles.of(FileSetting.TLS, paths, self._load, listener=name)
        self.context = self._load()
        self.context.sni_callback = self._use_current

    def _use_current(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.files.value

    def _check_readable(self) -> None:
        """Names the setting of a file that cannot be read; the TLS library would not say which one it is."""
        files = {"certificate": self._certificate, "key": self._key, "client_ca": self._client_ca}
        for setting, file in files.items():
            try:
                if file:
                    read_file(file)
            except OSError as exc:
                where = f"{self._name}.tls.{setting}"
                raise ConfigError(f"{where}: {file}: {exc.strerror}; give a readable PEM file") from exc

    def _load(self) -> ssl.SSLContext:
        self._check_readable()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # No resumption: a ticket from before a change would admit a client whose certificate the new authority refuses.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        try:
            # an encrypted key fails instead of prompting
            context.load_cert_chain(self._certificate, self._key, password="")
            if self._client_ca:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(
                f"{self._name}.tls: {', '.join(self._paths)}: {exc.strerror or exc}; give readable PEM files that fit"
            ) from exc
        _EXPIRES[self._name] = self._expiry()
        return context

    def _expiry(self) -> float:
        try:
            return expires_at(read_file(self._certificate)).timestamp()
        except (OSError, InvalidCertificate) as exc:
            where = f"{self._name}.tls.certificate"
            raise ConfigError(f"{where}: {self._certificate}: {exc}; give a readable PEM file") from exc
