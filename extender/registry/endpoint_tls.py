"""The TLS contexts of endpoints that have certificates of their own, made when a connection needs one.

Each takes most of a megabyte, since it holds the system's authorities too. So those used last are kept, and the readers
of files only try what a context would be made of.
"""

import contextlib
import functools
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from extender.errors import RegistryNotAsked
from extender.tls_context import new_client_context, unverified_context

MakeContext = Callable[[], ssl.SSLContext]
Stamp = tuple[str, int, int, int]  # of a file: path, inode, modification time in nanoseconds, size
_MOST_CONTEXTS = 24

CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)


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
        self._ca_files = ca_files
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
                for path in (*map(Path, self._ca_files), *certificates.authorities):
                    context.load_verify_locations(path)
                _trust_texts(context, "\n".join(certificates.pem))
            for certificate, key in certificates.clients:
                load_client(context, certificate, key)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            raise RegistryNotAsked("not asked: a file with certificates has just changed or is gone") from exc
        return context


def load_client(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Has the context show a certificate. Raises OSError or ValueError; an encrypted key fails instead of prompting."""
    context.load_cert_chain(certificate, key, password="")


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
