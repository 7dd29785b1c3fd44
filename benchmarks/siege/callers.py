"""Callers of the service: HTTP/1.1 over pools of keep-alive connections, as Go's clients keep them.

A connection that the server has closed while it was idle is replaced without a word, as Go does.
"""

import asyncio
import contextlib
import ssl

import msgspec

_IDLE = 25  # connections kept for later; the API server keeps as many for a webhook
_HEAD = (
    b"POST %b HTTP/1.1\r\nHost: service\r\nUser-Agent: siege\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


class CallFailed(RuntimeError):
    """There is no answer with status 200; the message tells why in a few words."""


class Stream(msgspec.Struct, frozen=True):
    """One connection; `is_new` until it has carried a request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_new: bool

    def close(self) -> None:
        """Closes the connection without waiting for the server."""
        self.writer.transport.abort()


def any_certificate() -> ssl.SSLContext:
    """Returns a client's TLS context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def request_head(path: str, body_bytes: int) -> bytes:
    """Returns the head of a POST with a body of so many bytes."""
    return _HEAD % (path.encode(), body_bytes)


class Caller:
    """Sends requests to one address from one source address, each over a connection of its own at that time."""

    def __init__(self, host: str, port: int, *, source: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._address = host, port
        self._source = (source, 0) if source else None
        self._tls = tls
        self._idle: list[Stream] = []

    async def ask(self, path: str, body: bytes, timeout_seconds: float) -> bytes:
        """Returns the body of the answer. Raises CallFailed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._ask(request_head(path, len(body)) + body)
        except TimeoutError:
            raise CallFailed("timed out") from None
        except (OSError, asyncio.IncompleteReadError, ValueError) as exc:
            raise CallFailed(type(exc).__name__) from exc

    async def _ask(self, request: bytes) -> bytes:
        while True:
            stream = self._idle.pop() if self._idle else await self._connect()
            try:
                status, body = await _exchange(stream, request)
            except (OSError, asyncio.IncompleteReadError) as exc:
                stream.close()
                if stream.is_new or (isinstance(exc, asyncio.IncompleteReadError) and exc.partial):
                    raise
                continue
            except BaseException:
                stream.close()
                raise
            self._keep(stream)
            if status != 200:
                raise CallFailed(f"status {status}")
            return body

    async def _connect(self) -> Stream:
        reader, writer = await asyncio.open_connection(*self._address, local_addr=self._source, ssl=self._tls)
        return Stream(reader, writer, True)

    def _keep(self, stream: Stream) -> None:
        if len(self._idle) < _IDLE and not stream.reader.at_eof():
            self._idle.append(Stream(stream.reader, stream.writer, False))
        else:
            stream.close()

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            with contextlib.suppress(OSError):
                self._idle.pop().close()


async def _exchange(stream: Stream, request: bytes) -> tuple[int, bytes]:
    stream.writer.write(request)
    head = await stream.reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    return int(head[9:12]), await stream.reader.readexactly(length)
