"""The one response of the hot paths: 200 with a JSON body, whose head is put together without a header map.

Knows how HTTP/1.1 says so; what is answered it must not know. aiohttp's own Response does the same for every status,
header, charset, compression and body there can be, which costs as much as a small decision does.
"""

import time
from email.utils import formatdate

from aiohttp import ClientConnectionResetError, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

# A larger body is handed over beside its head instead of being copied behind it.
_COPIED_BYTES = 16 * 1024


class _Clock:
    """The Date header's line, which changes once a second (RFC 9110, section 6.6.1)."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


_CLOCK = _Clock()


class JsonAnswer(web.StreamResponse):
    """A 200 with this JSON text. It is sent as soon as it is prepared."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self._text = text
        self._keeps = True

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open; said for good once the answer is prepared."""
        return self._keeps

    def force_close(self) -> None:
        """The connection ends with this answer."""
        self._keeps = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Send head and body.

        Raises:
            ClientConnectionResetError: the caller has gone.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the caller has gone")
        self._keeps = self._keeps and request.keep_alive
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n" % (
            len(self._text),
            _CLOCK.line(),
            _connection(request, keeps=self._keeps),
        )
        if len(self._text) < _COPIED_BYTES:
            transport.write(head + self._text)
        else:
            transport.writelines((head, self._text))
        writer: AbstractStreamWriter = request.writer
        writer.output_size += len(head) + len(self._text)
        return writer

    async def write_eof(self, _data: bytes = b"") -> None:
        """Nothing is left to send."""


def _connection(request: web.BaseRequest, *, keeps: bool) -> bytes:
    """What HTTP/1.1 takes for granted is not said (RFC 9112, section 9.3)."""
    if keeps:
        return b"" if request.version >= HttpVersion11 else b"Connection: keep-alive\r\n"
    return b"Connection: close\r\n"
