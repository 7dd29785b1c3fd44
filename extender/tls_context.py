"""TLS contexts of clients: what they take of a server, and how one is replaced while clients hold on to it.

An authority cannot be removed from an `ssl.SSLContext`, and clients of HTTP and Redis keep the one they were given.
"""

import ssl
from collections.abc import Callable

from extender.regular_files import check_regular


def new_client_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Returns a context that trusts the system's authorities, or those in `ca_file`, as Go's clients on nodes do.

    Python 3.13 refuses authorities and certificates that lack an extension RFC 5280 asks for, or do not mark it as
    critical; Go's clients take them. Any certificate that is named is trusted, an intermediate one too.

    Raises:
        OSError: the file cannot be read or holds no certificate; `ssl.SSLError` is one.
    """
    if ca_file:
        check_regular(ca_file)
    context = ssl.create_default_context(cafile=ca_file)  # noqa: TID251 - the one place that makes one
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class CurrentContext(ssl.SSLContext):
    """Shakes hands as the context that `current` returns then. Connections that are open stay as they are.

    Only `wrap_bio` is passed on, by which asyncio's event loops begin every handshake.
    """

    _current: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, current: Callable[[], ssl.SSLContext]) -> "CurrentContext":
        """Returns a context that stands for the one that `current` returns."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context._current = current
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._current().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
