"""A client's TLS context that can be replaced while connections are open and clients hold on to it.

An authority cannot be removed from an `ssl.SSLContext`, and clients of HTTP and Redis keep the one they were given.
"""

import ssl
from collections.abc import Callable


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
        """Begins a handshake."""
        return self._current().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
