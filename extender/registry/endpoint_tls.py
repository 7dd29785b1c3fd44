"""What the session, and endpoints with certificates of their own, are trusted by; their TLS contexts, made when needed.

Each context takes most of a megabyte, since it holds the system's authorities too. So the 24 used last are kept, and
the readers of files only try what a context would be made of.
"""

import contextlib
import functools
import ssl
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from extender.errors import ConfigError, RegistryNotAsked
from extender.regular_files import check_regular
from extender.tls_context import CurrentContext, new_client_context, unverified_context
from extender.watched_files import FileSetting, Stamps, WatchedFiles, stamp_of

_MOST_CONTEXTS = 24


class RegistryTrust:
    """The system's authorities and those in `ca_files`, which are PEM bundles and may change.

    `context` trusts what the files hold when a connection is opened. Connections that are open stay open.

    Raises:
        ConfigError: one of the files cannot be read or holds no certificate.
    """

    def __init__(self, ca_files: Sequence[str] = ()) -> None:
        self.ca_files = tuple(map(Path, ca_files))
        self.files = WatchedFiles.of(FileSetting.CA_FILES, ca_files, self._read)
        self.context = CurrentContext.of(lambda: self.files.value)

    def _read(self) -> ssl.SSLContext:
        context = new_client_context()
        for path in self.ca_files:
            with _naming(f"registry.ca_files: {path} holds no certificates"):
                check_regular(path)
                context.load_verify_locations(path)
        return context


class Certificates(NamedTuple):
    """What a TLS context is made of besides the system's authorities, for an endpoint's origin.

    None in its place stands for the session's own context.
    """

    session: tuple[Path, ...] = ()
    """The operator's authorities of all hosts."""
    authorities: tuple[Path, ...] = ()
    clients: tuple[tuple[Path, Path | None], ...] = ()
    """The files of a certificate and its key; no key if one file has both."""
    is_unverified: bool = False
    stamps: tuple[Hashable, ...] = ()
    """Those of the files, so that a file that changes makes another context."""

    @property
    def elsewhere(self) -> "Certificates | None":
        """The same authorities, for the token server and the targets of redirects.

        They see no client certificate, and are always verified.
        """
        return self._replace(clients=(), is_unverified=False) if self.authorities else None


def tls_context_of(certificates: Certificates) -> ssl.SSLContext:
    """Returns the TLS context.

    Raises:
        RegistryNotAsked: a file cannot be used, which was tried when the name of the file was read.
    """
    try:
        return _new_context(certificates)
    except ConfigError as exc:
        raise RegistryNotAsked("not asked: a file with certificates has just changed or is gone") from exc


@functools.lru_cache(_MOST_CONTEXTS)
def _new_context(certificates: Certificates) -> ssl.SSLContext:
    context = unverified_context() if certificates.is_unverified else new_client_context()
    if not certificates.is_unverified:
        _load_authorities(context, (*certificates.session, *certificates.authorities))
    _load_clients(context, certificates.clients)
    return context


class CertificateReader:
    """Tries the files that hosts' certificates are in."""

    def __init__(self, ca_files: Sequence[str] = (), stamps: Stamps | None = None) -> None:
        """`ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        `stamps` gets those of the files, from before each is read.
        """
        self._stamps: Stamps = {} if stamps is None else stamps
        self._ca_files = tuple(map(Path, ca_files))
        self._tried: set[Certificates] = set()

    def trust(
        self, authorities: Sequence[Path], clients: Sequence[tuple[Path, Path | None]], *, skip_verify: bool = False
    ) -> Certificates | None:
        """Returns what a host is trusted by that has these files of authorities, client certificates and their keys.

        Raises:
            ConfigError: one of them cannot be used; the message names the file.
        """
        if not authorities and not clients and not skip_verify:
            return None
        paths = (*self._ca_files, *authorities, *(path for pair in clients for path in pair if path))
        for path in paths:
            if path not in self._stamps:
                self._stamps[path] = stamp_of(path)
        stamps = tuple((path, self._stamps[path]) for path in paths)
        own = Certificates(self._ca_files, tuple(authorities), tuple(clients), skip_verify, stamps)
        if own not in self._tried:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities, which take 25 ms
            _load_authorities(context, authorities)
            _load_clients(context, clients)
            self._tried.add(own)
        return own

    def folder_trust(self, folder: Path) -> Certificates | None:
        """Returns the same by a folder in Docker's certs.d layout.

        `*.crt` are authorities. `*.cert` and `*.key` of the same name are a client certificate. Raises OSError and
        ConfigError.
        """
        names = sorted(entry.name for entry in folder.iterdir())
        stems = [name.removesuffix(".cert") for name in names if name.endswith(".cert")]
        clients = [(folder / f"{stem}.cert", folder / f"{stem}.key" if f"{stem}.key" in names else None)
                   for stem in stems]  # fmt: skip
        return self.trust([folder / name for name in names if name.endswith(".crt")], clients)


def _load_authorities(context: ssl.SSLContext, paths: Sequence[Path]) -> None:
    for path in paths:
        with _naming(f"ca: {path} holds no certificates"):
            check_regular(path)
            context.load_verify_locations(path)


def _load_clients(context: ssl.SSLContext, clients: Sequence[tuple[Path, Path | None]]) -> None:
    for certificate, key in clients:
        with _naming(f"client: {certificate} and its key cannot be used"):
            for path in filter(None, (certificate, key)):
                check_regular(path)
            context.load_cert_chain(certificate, key, password="")  # an encrypted key fails instead of prompting


@contextlib.contextmanager
def _naming(problem: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError; a NUL in the name gives a ValueError
        raise ConfigError(f"{problem}: {(isinstance(exc, OSError) and exc.strerror) or exc}") from exc
