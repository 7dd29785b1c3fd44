"""What endpoints with certificates of their own are trusted by, and the TLS contexts for them, made when needed.

Each context takes most of a megabyte, since it holds the system's authorities too. So those used last are kept, and the
readers of files only try what a context would be made of.
"""

import contextlib
import functools
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from yarl import URL

from extender.errors import ConfigError, RegistryNotAsked
from extender.tls_context import CurrentContext, new_client_context, unverified_context
from extender.watched_files import FileSetting, WatchedFiles

MakeContext = Callable[[], ssl.SSLContext]
Stamp = tuple[str, int, int, int]  # of a file: path, inode, modification time in nanoseconds, size
_MOST_CONTEXTS = 24

CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)


class Trust(msgspec.Struct, frozen=True):
    """The TLS contexts for an endpoint, made when they are needed; None stands for the session's own.

    `own` is for the endpoint's origin. Only `own` has a client certificate or skips verification. `elsewhere` trusts
    the same authorities, and is for the token server and for the targets of redirects.
    """

    origin: URL | None = None
    own: MakeContext | None = None
    elsewhere: MakeContext | None = None

    def at(self, origin: URL) -> "Trust":
        """Returns what an endpoint of this origin is trusted by."""
        return msgspec.structs.replace(self, origin=origin)

    def context_for(self, url: URL) -> ssl.SSLContext | bool:
        """Returns the TLS context for a request to `url`; True stands for the session's own.

        Raises:
            RegistryNotAsked: a file that it is made of cannot be used any more.
        """
        make = self.own if url.origin() == self.origin else self.elsewhere
        return make() if make else True


SYSTEM_TRUST = Trust()
UNVERIFIED: MakeContext = functools.cache(unverified_context)
"""The context that takes every certificate and shows none."""


class RegistryTrust:
    """The system's authorities and those in `ca_files`, which are PEM bundles and may change.

    `context` trusts what the files hold when a connection is opened. Connections that are open stay open.

    Raises:
        ConfigError: one of the files cannot be read or holds no certificate.
    """

    def __init__(self, ca_files: Sequence[str] = ()) -> None:
        self.files = WatchedFiles.of_setting(FileSetting.CA_FILES, ca_files, lambda: _trusting(ca_files))
        self.context = CurrentContext.of(lambda: self.files.value)
        self.ca_files = tuple(ca_files)


class Certificates(NamedTuple):
    """What a context is made of. `stamps` are those of the files, so that a file that changes makes another one."""

    authorities: tuple[Path, ...] = ()
    pem: tuple[str, ...] = ()
    """Texts with authorities, of which those are left out that are no certificate, as by Go."""
    clients: tuple[tuple[Path, Path | None], ...] = ()
    """The files of a certificate and its key; no key if one file has both."""
    is_unverified: bool = False
    stamps: tuple[Stamp, ...] = ()


class TlsContexts:
    """The contexts of all endpoints of a kind of mirrors; the 24 that were used last are kept."""

    def __init__(self, ca_files: Sequence[str] = ()) -> None:
        """`ca_files` are PEM bundles trusted for all hosts, in addition to the system's."""
        self.ca_files = tuple(map(Path, ca_files))
        self._context_of = functools.lru_cache(_MOST_CONTEXTS)(self._make)

    def of(self, certificates: Certificates) -> MakeContext:
        """Returns what gives the context.

        It raises RegistryNotAsked if a file cannot be used, which was tried when the name of the file was read.
        """
        return functools.partial(self._context_of, certificates)

    def _make(self, certificates: Certificates) -> ssl.SSLContext:
        context = unverified_context() if certificates.is_unverified else new_client_context()
        try:
            if not certificates.is_unverified:
                for path in (*self.ca_files, *certificates.authorities):
                    context.load_verify_locations(path)
                _trust_texts(context, "\n".join(certificates.pem))
            for certificate, key in certificates.clients:
                _load_client(context, certificate, key)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            raise RegistryNotAsked("not asked: a file with certificates has just changed or is gone") from exc
        return context


class CertificateReader:
    """Tries the files that hosts' certificates are in. `stamps` has those of the files so far, from before reading."""

    def __init__(self, contexts: TlsContexts) -> None:
        """`contexts` makes the contexts."""
        self.stamps: dict[Path, Stamp] = {}
        self._contexts = contexts

    def trust(
        self, authorities: Sequence[Path], clients: Sequence[tuple[Path, Path | None]], *, skip_verify: bool = False
    ) -> Trust:
        """Returns what a host is trusted by that has these files of authorities, client certificates and their keys.

        Raises:
            ConfigError: one of them cannot be used; the message names the file.
        """
        if not authorities and not clients and not skip_verify:
            return SYSTEM_TRUST
        for path in authorities:
            self._try_authority(path)
        for certificate, key in clients:
            self._try_client(certificate, key)
        paths = (*self._contexts.ca_files, *authorities, *(path for pair in clients for path in pair if path))
        elsewhere = Certificates(tuple(authorities), stamps=tuple(map(self._note, paths)))
        own = elsewhere._replace(clients=tuple(clients), is_unverified=skip_verify)
        return Trust(None, self._contexts.of(own), self._contexts.of(elsewhere) if authorities else None)

    def folder_trust(self, folder: Path) -> Trust:
        """Returns the same by a folder in Docker's certs.d layout.

        `*.crt` are authorities. `*.cert` and `*.key` of the same name are a client certificate. Raises OSError and
        ConfigError.
        """
        names = sorted(entry.name for entry in folder.iterdir())
        stems = [name.removesuffix(".cert") for name in names if name.endswith(".cert")]
        clients = [(folder / f"{stem}.cert", folder / f"{stem}.key" if f"{stem}.key" in names else None)
                   for stem in stems]  # fmt: skip
        return self.trust([folder / name for name in names if name.endswith(".crt")], clients)

    def _try_authority(self, path: Path) -> None:
        if path in self.stamps:
            return
        self._note(path)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError; a NUL in the name gives a ValueError
            raise ConfigError(f"ca: {path} holds no certificates: {_why(exc)}") from exc

    def _try_client(self, certificate: Path, key: Path | None) -> None:
        for path in filter(None, (certificate, key)):
            self._note(path)
        try:
            _load_client(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)
        except (OSError, ValueError) as exc:
            raise ConfigError(f"client: {certificate} and its key cannot be used: {_why(exc)}") from exc

    def _note(self, path: Path) -> Stamp:
        return self.stamps.setdefault(path, stamp_of(path))


def stamp_of(path: Path) -> Stamp:
    """Returns what another content of the file changes; that of a file that is not there is the same each time."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a path with a NUL names no file
        return str(path), 0, 0, 0
    return str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _load_client(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Has the context show a certificate. Raises OSError or ValueError; an encrypted key fails instead of prompting."""
    context.load_cert_chain(certificate, key, password="")


def _why(exc: OSError | ValueError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else "") or str(exc)


def _trust_texts(context: ssl.SSLContext, text: str) -> None:
    certificates: list[str] = CERTIFICATE.findall(text)
    if not certificates:
        return
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError):  # one of them is none; one by one takes four times as long
        for certificate in certificates:
            with contextlib.suppress(ssl.SSLError):
                context.load_verify_locations(cadata=certificate)


def _trusting(ca_files: Sequence[str]) -> ssl.SSLContext:
    context = new_client_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"registry.ca_files: {path} holds no certificates: {exc.strerror or exc}") from exc
    return context
