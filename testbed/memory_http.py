"""HTTP/1.1 in memory, for parties that are played: a server of one handler, and a client with a pool of connections.

Both read what the other and aiohttp write: bodies with a length or in chunks, connections that stay. Neither knows
pipelining, upgrades, trailers or interim answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

from testbed.memory_listening import MemoryServer
from testbed.memory_network import Network
from testbed.memory_transport import MemoryTransport

_REASONS = {each.value: each.phrase for each in HTTPStatus}
_BODILESS = (204, 304)


@dataclass(slots=True)
class Request:
    """What a caller asks. Names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    caller: str
    """The address of who asks, empty if it has none."""


@dataclass(slots=True)
class Response:
    """An answer: `body`, or what `stream` gives until it ends. A ConnectionError of the stream cuts the connection."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Request], Awaitable[Response]]


def serve_http(network: Network, host: str, port: int, handler: Handler) -> MemoryServer:
    """Answers requests at an address. A caller that goes away cancels the handler; one that raises is a 500."""
    return network.listen(host, port, lambda: _ServerConnection(handler))


class Client:
    """Asks for one party, whose address is `of`. Keeps its connections."""

    def __init__(self, network: Network, of: str) -> None:
        self._network = network
        self._of = of
        self._idle: dict[tuple[str, int], list[_ClientConnection]] = {}

    async def request(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] = {}, *, timeout_seconds: float
    ) -> Response:
        """The answer, read whole; raises TimeoutError and ConnectionError.

        A connection that was kept and has ended meanwhile is replaced by a new one, as Go's client does.
        """
        parts = urlsplit(url)
        place = (parts.hostname or "", parts.port or 80)
        head = _head(f"{method} {parts.path or '/'}{'?' if parts.query else ''}{parts.query} HTTP/1.1", headers)
        message = b"%bHost: %b\r\nContent-Length: %d\r\n\r\n%b" % (head, parts.netloc.encode(), len(body), body)
        async with asyncio.timeout(timeout_seconds):
            kept = self._kept(place)
            if kept:
                with contextlib.suppress(_Unanswered):
                    return await self._exchange(kept, place, message, method)
            return await self._exchange(await self._connect(place), place, message, method)

    def close(self) -> None:
        """Ends the connections that nobody uses."""
        for connections in self._idle.values():
            for each in connections:
                each.close()
        self._idle.clear()

    def _kept(self, place: tuple[str, int]) -> "_ClientConnection | None":
        idle = self._idle.get(place, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, place: tuple[str, int]) -> "_ClientConnection":
        connection = _ClientConnection()
        try:
            await self._network.connect(lambda: connection, *place, of=self._of)
        except OSError as exc:
            if isinstance(exc, ConnectionError):
                raise
            raise ConnectionError(str(exc)) from exc
        return connection

    async def _exchange(
        self, connection: "_ClientConnection", place: tuple[str, int], message: bytes, method: str
    ) -> Response:
        try:
            response = await connection.exchange(message, method)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            self._idle.setdefault(place, []).append(connection)
        return response


class _Unanswered(ConnectionResetError):
    """The connection ended before a byte of the answer."""


class _Reader:
    """Parses messages one after the other: their first line, headers and bodies."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.line = ""
        self.headers: dict[str, str] | None = None  # of the message that is arriving
        self._body = bytearray()

    def read_head(self) -> bool:
        """Whether the head has arrived."""
        if self.headers is not None:
            return True
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.line, *lines = self.data[:end].decode("latin-1").split("\r\n")
        del self.data[: end + 4]
        self.headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        return True

    def read_body(self, *, is_ended: bool = False) -> bytes | None:
        """The body once it is there whole. One of unknown length ends with the connection."""
        headers = self.headers or {}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunks()
        length = headers.get("content-length")
        size = len(self.data) if length is None else int(length)
        if (length is None and not is_ended) or len(self.data) < size:
            return None
        body = bytes(self.data[:size])
        del self.data[:size]
        return body

    def end(self) -> None:
        """Begins with the next message."""
        self.headers = None
        self._body.clear()

    def _read_chunks(self) -> bytes | None:
        while True:
            end = self.data.find(b"\r\n")
            if end < 0:
                return None
            size = int(self.data[:end].split(b";")[0], 16)
            if len(self.data) < end + 4 + size:
                return None
            self._body += self.data[end + 2 : end + 2 + size]
            del self.data[: end + 4 + size]
            if not size:
                return bytes(self._body)


class _ServerConnection(asyncio.Protocol):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._reader = _Reader()
        self._task: asyncio.Task[None] | None = None
        self._transport: MemoryTransport
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.data += data
        self._answer_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def _answer_next(self) -> None:
        reader = self._reader
        if self._task or not reader.read_head():
            return
        assert reader.headers is not None
        if "content-length" not in reader.headers and "transfer-encoding" not in reader.headers:
            reader.headers["content-length"] = "0"
        body = reader.read_body()
        if body is None:
            return
        method, target, _ = reader.line.split(" ")
        path, _, query = target.partition("?")
        caller = str(self._transport.get_extra_info("of"))
        request = Request(
            method, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), reader.headers, body, caller
        )
        reader.end()
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._handler(request)
        except Exception:
            self._write(request, Response(500, b"the handler failed"))
            self._transport.close()
            raise
        if response.stream is None:
            self._write(request, response)
        elif not await self._write_stream(response, response.stream):
            return
        self._task = None
        if request.headers.get("connection", "").lower() == "close":
            self._transport.close()
        else:
            self._answer_next()

    def _write(self, request: Request, response: Response) -> None:
        has_body = request.method != "HEAD" and response.status not in _BODILESS
        length = b"" if response.status in _BODILESS else b"Content-Length: %d\r\n" % len(response.body)
        head = _response_head(response)
        self._transport.write(b"%b%b\r\n%b" % (head, length, response.body if has_body else b""))

    async def _write_stream(self, response: Response, stream: AsyncIterator[bytes]) -> bool:
        """Whether the connection can be used for more."""
        self._transport.write(_response_head(response) + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            async for chunk in stream:
                if chunk:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await self._is_writable.wait()
        except ConnectionError:
            self._transport.abort()
            return False
        finally:
            if close := getattr(stream, "aclose", None):
                await close()
        self._transport.write(b"0\r\n\r\n")
        return True


class _ClientConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = _Reader()
        self._answer: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_for_head = False

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and nothing is under way."""
        return self._answer is None and self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def exchange(self, message: bytes, method: str) -> Response:
        """Sends a request; returns its answer."""
        assert self._transport
        self._answer = asyncio.get_running_loop().create_future()
        self._is_for_head = method == "HEAD"
        self._transport.write(message)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        """Ends it."""
        if self._transport:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._reader.data += data
        self._read(is_ended=False)

    def eof_received(self) -> None:
        self._read(is_ended=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        answer = self._answer
        if answer and not answer.done():
            reader = self._reader
            is_unanswered = reader.headers is None and not reader.data
            kind = _Unanswered if is_unanswered else ConnectionResetError
            answer.set_exception(kind(str(exc) if exc else "the connection ended before its answer"))

    def _read(self, *, is_ended: bool) -> None:
        reader = self._reader
        if self._answer is None or self._answer.done() or not reader.read_head():
            return
        assert reader.headers is not None
        status = int(reader.line.split(" ")[1])
        body = b"" if self._is_for_head or status in _BODILESS else reader.read_body(is_ended=is_ended)
        if body is None:
            return
        response = Response(status, body, reader.headers)
        reader.end()
        if response.headers.get("connection", "").lower() == "close" and self._transport:
            self._transport.close()
        self._answer.set_result(response)


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    return "".join([first, "\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items())]).encode("latin-1")


def _response_head(response: Response) -> bytes:
    return _head(f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}", response.headers)
