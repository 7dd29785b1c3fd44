"""A connection of aiohttp's that is counted, and whose requests arrive in time or not at all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import StreamReader, web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from extender.server.limits import Connections

# A connection must outlive kube-scheduler's idle pool (90 s), or the server closes it just as a POST is sent on it.
KEEP_ALIVE_SECONDS = 3630.0
# After an answer that came before the end of its request, what still arrives is dropped for so long. If the connection
# were closed at once, the kernel would tell the caller so, and the answer would be lost.
LINGER_SECONDS = 1.0

HEAD_END = b"\r\n\r\n"
_NO_ROOM = ("503 Service Unavailable\r\nRetry-After: 1", "the bodies of other requests take all the room that there is")
_LATE = ("408 Request Timeout", "the body did not arrive in time")


class Connection(RequestHandler):
    """One connection. It reads private attributes of aiohttp's class, for which pyproject.toml bounds the release."""

    __slots__ = ("_payload", "_unanswered", "connections", "handshake", "has_asked", "is_refused", "pending_bytes")

    def __init__(self, server: web.Server, connections: Connections) -> None:
        """Counts itself among `connections`, until `connection_lost`."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            access_log=None,  # type: ignore[arg-type]  # None is no log
            lingering_time=LINGER_SECONDS,
        )
        self._next_keepalive_close_time = self._loop.time() + KEEP_ALIVE_SECONDS
        self.connections = connections
        self.handshake: asyncio.Task[None] | None = None  # while there is no transport
        self.has_asked = False
        self.is_refused = False  # whether all that still arrives is dropped
        self.pending_bytes = 0
        self._payload: StreamReader = EMPTY_PAYLOAD  # of the last request that aiohttp has the head of
        self._unanswered = 0  # requests that aiohttp has
        connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts itself as closed."""
        self.connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes data to aiohttp, and counts it until its request is answered. aiohttp calls this without any, too."""
        if data and not self.receive(len(data)):
            return
        before, fed = self._request_count, self._payload.total_bytes
        super().data_received(data)
        heads = self._request_count - before
        if heads:
            self._unanswered += heads
            self._payload, fed = self._messages[-1][1], 0
        if not self._is_streaming:
            if _ends_request(data, self._payload.total_bytes - fed, has_head=heads > 0):
                self.end_request()
        elif heads:
            self.connections.await_body(self)

    def receive(self, size: int) -> bool:
        """Counts bytes of a request that arrive; False if they are refused."""
        if self.is_refused:
            return False
        if self._is_streaming and not self._unanswered:  # it was answered early, and aiohttp drops the rest
            return True
        if not self.connections.is_awaiting(self):
            self.connections.await_head(self)
        return self.connections.hold(self, size)

    def end_request(self) -> None:
        """Notes that a request has arrived, and nothing of a further one."""
        self.has_asked = True
        self.connections.end_wait(self)
        if not self._unanswered:
            self.connections.release(self)

    def end_answer(self) -> None:
        """Notes that the handler has made an answer."""
        self._unanswered = max(self._unanswered - 1, 0)
        if not self._unanswered:
            self.connections.release(self)

    @property
    def idle_since(self) -> tuple[bool, float] | None:
        """As `Limited` has it. aiohttp too notes with each answer when the connection is to end."""
        if self._is_answering:
            return None
        return self.has_asked, self._next_keepalive_close_time - KEEP_ALIVE_SECONDS

    def expire(self) -> bool:
        """As `Limited` has it."""
        if self._is_answering:
            return False
        if self.awaits_body:
            self.answer_last(*_LATE)
        else:
            self.abort()
        return True

    def refuse(self) -> None:
        """As `Limited` has it."""
        self.answer_last(*_NO_ROOM)

    def abort(self) -> None:
        """As `Limited` has it."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @property
    def awaits_body(self) -> bool:
        """Whether the head of a request has arrived, and not all of its body."""
        return self._is_streaming

    def answer_last(self, status: str, why: str) -> None:
        """Answers the request that arrives in aiohttp's place, drops the rest of it, and ends the connection.

        There is no answer if an earlier request still has none, or the peer does not read.
        """
        self.is_refused = True
        transport = self.transport
        if transport is None or self._paused or self._unanswered != (1 if self._is_streaming else 0):
            self.abort()
            return
        self.transport = None  # so that aiohttp writes nothing more
        text = f'{{"error":"{why}"}}'
        fields = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close"
        transport.write(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{text}".encode())
        self._payload.set_exception(ConnectionResetError(why))
        self._loop.call_later(LINGER_SECONDS, transport.abort)

    @property
    def _is_streaming(self) -> bool:
        """Whether aiohttp has the head of a request, and not all of its body."""
        return not self._payload.is_eof()

    @property
    def _is_answering(self) -> bool:
        """Whether a whole request has no answer yet."""
        return self._unanswered > (1 if self._is_streaming else 0)


def count_answers(server: web.Server) -> None:
    """Lets the connections of a server know when its handler has made an answer."""
    answer = server.request_handler

    async def answer_and_tell(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await answer(request)
        finally:
            cast("Connection", request.protocol).end_answer()

    server.request_handler = cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", answer_and_tell)


def _ends_request(data: bytes, body_bytes: int, *, has_head: bool) -> bool:
    """Whether data that completed a request ends with it; `body_bytes` of it were of the body."""
    head_bytes = data.find(HEAD_END) + len(HEAD_END) if has_head else 0
    return not data or data.endswith(HEAD_END) or head_bytes + body_bytes == len(data)
