"""One connection in memory: two transports, each of which hands what is written to the protocol at the other end.

It plays TCP as far as programs meet it: order, a bounded window of bytes that nobody has read yet, half-closed
connections, resets. It loses nothing, unless the connection is silenced: then bytes vanish, and nothing ends.
"""

import asyncio
import errno
from asyncio import protocols
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Protocol, cast

WINDOW_BYTES = 256 << 10
"""What one end may have written and the other not read before the writer's own buffer fills."""
_PIECE_BYTES = 256 << 10  # are given to a protocol at once, as asyncio's transports do
_HIGH_BYTES = 64 << 10  # of a writer's own buffer: asyncio's default

_END = b""  # that one end writes no more
_RESET = "Connection reset by peer"


class Wire(Protocol):
    """What a connection goes over."""

    def transit_seconds(self, link: "Link") -> float:
        """How long the next bytes take."""

    def forget(self, link: "Link") -> None:
        """Both ends of the connection are closed."""


class Link:
    """What both ends of a connection share: who has made it, to where, and whether its bytes vanish."""

    __slots__ = ("far", "is_silenced", "keys", "near", "of", "port", "server", "wire")

    def __init__(self, wire: Wire, of: str, server: str, port: int) -> None:
        self.wire, self.of, self.server, self.port = wire, of, server, port
        self.is_silenced = False
        place = f"{server}:{port}"
        self.keys = tuple(dict.fromkeys(((server, ""), (place, ""), (of, ""), (server, of), (place, of))))
        """The faults that concern it, each as a place and who connects to it."""
        self.near: MemoryTransport | None = None
        self.far: MemoryTransport | None = None


class MemoryTransport(asyncio.Transport):
    """One end of a connection. What arrives before `attach` waits for it."""

    _start_tls_compatible = True  # for `loop.start_tls`

    def __init__(
        self, loop: asyncio.AbstractEventLoop, link: Link, own: tuple[str, int], other: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": own, "peername": other, "of": link.of})
        self._loop = loop
        self._link = link
        self.peer: MemoryTransport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = copy_context()  # in which the protocol is called
        self._is_buffered = False  # whether the protocol reads into a buffer of its own
        self._inbox: deque[bytes] = deque()
        self._unread_bytes = 0  # in the inbox or on the way to it
        self._arrivals: deque[bytes] = deque()  # on the way to the inbox
        self._arrives_at = 0.0
        self._is_due = False  # whether `_deliver` is going to run
        self._is_paused = False
        self._outbox: deque[bytes] = deque()  # beyond the window
        self._outbox_bytes = 0
        self._high_bytes, self._low_bytes = _HIGH_BYTES, _HIGH_BYTES // 4
        self._is_writer_paused = False
        self._is_ended = False  # whether no more may be written
        self._is_closing = False
        self._is_lost = False  # whether the protocol is going to be told
        self._is_over = False  # whether it has been told

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives the connection to a protocol, which is called in the context of this call."""
        self._context = copy_context()
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if self._is_lost:
            reset = ConnectionResetError(errno.ECONNRESET, _RESET)
            self._loop.call_soon(protocol.connection_lost, reset, context=self._context)
        self._deliver_soon()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives what arrives from now on to another protocol."""
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol, until it is told of the end."""
        return cast("asyncio.BaseProtocol", self._protocol)

    def is_closing(self) -> bool:
        """Whether it is closed or going to be."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Whether what arrives is given to the protocol."""
        return not (self._is_paused or self._is_closing)

    def pause_reading(self) -> None:
        """Keeps what arrives."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Gives what has arrived to the protocol, at the next turn of the loop."""
        if self._is_paused:
            self._is_paused = False
            self._deliver_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes; they are kept if the other end has too much to read already."""
        if self._is_ended and not self._is_closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._is_closing or self._is_lost:
            return
        data = bytes(data)
        peer = self.peer
        if peer is None or (peer._is_lost and not self._link.is_silenced):
            self.reset()
            return
        room = WINDOW_BYTES - peer._unread_bytes
        if self._outbox or len(data) > room:
            self._keep(data, room)
        else:
            self._send(peer, data)

    def can_write_eof(self) -> bool:
        """Always."""
        return True

    def write_eof(self) -> None:
        """Ends what is written; what the other end writes still arrives."""
        if not (self._is_ended or self._is_closing):
            self._is_ended = True
            self._flush()

    def get_write_buffer_size(self) -> int:
        """How many bytes wait for room in the window."""
        return self._outbox_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """When the protocol is to resume and to pause."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets them."""
        self._high_bytes = (_HIGH_BYTES if low is None else 4 * low) if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def close(self) -> None:
        """Closes, once everything is written."""
        if self._is_closing:
            return
        self._is_closing = self._is_ended = True
        self._drop_unread()
        self._flush()

    def abort(self) -> None:
        """Closes now. The other end gets what was sent already, unless this one has not read everything."""
        self._force_close(None)

    def _force_close(self, exc: Exception | None) -> None:
        """As `abort`, which asyncio's TLS calls by this name."""
        if self._is_lost:
            return
        has_unread = bool(self._inbox)
        self._is_closing = self._is_ended = True
        self._outbox.clear()
        self._outbox_bytes = 0
        self._drop_unread()
        peer = self.peer
        if has_unread and peer and not self._link.is_silenced:
            self._loop.call_soon(peer.reset, context=peer._context)
        else:
            self._send_end()
        self._lose(exc)

    def reset(self) -> None:
        """Ends as a connection does that the other side, or something on the way, has reset."""
        self._is_closing = self._is_ended = True
        self._outbox.clear()
        self._inbox.clear()
        self._outbox_bytes = 0
        self._lose(ConnectionResetError(errno.ECONNRESET, _RESET))

    def _keep(self, data: bytes, room: int) -> None:
        """Sends what there is room for and keeps the rest."""
        if not self._outbox and room > 0 and self.peer:
            self._send(self.peer, data[:room])
            data = data[room:]
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        if self._outbox_bytes > self._high_bytes and not self._is_writer_paused and self._protocol is not None:
            self._is_writer_paused = True
            self._call(self._protocol.pause_writing)

    def _send(self, peer: "MemoryTransport", data: bytes) -> None:
        peer._unread_bytes += len(data)
        link = self._link
        if link.is_silenced:
            return
        seconds = link.wire.transit_seconds(link)
        if not seconds and not peer._arrivals:
            peer._inbox.append(data)
            peer._deliver_soon()
        else:
            peer._arrivals.append(data)
            peer._arrives_at = max(peer._arrives_at, self._loop.time() + seconds)
            self._loop.call_at(peer._arrives_at, peer._arrive)

    def _send_end(self) -> None:
        if self.peer:
            self._send(self.peer, _END)

    def _arrive(self) -> None:
        """The next of what is on the way is there: timers of one instant have no order of their own."""
        self._inbox.append(self._arrivals.popleft())
        if self._link.is_silenced:
            self._inbox.clear()
        else:
            self._deliver_soon()

    def _flush(self) -> None:
        """Sends what there is room for; then the end, and closes, if that is due."""
        peer = self.peer
        while self._outbox and peer:
            room = WINDOW_BYTES - peer._unread_bytes
            if room <= 0:
                break
            data = self._outbox.popleft()
            if len(data) > room:
                self._outbox.appendleft(data[room:])
                data = data[:room]
            self._outbox_bytes -= len(data)
            self._send(peer, data)
        if self._is_writer_paused and self._outbox_bytes <= self._low_bytes and self._protocol is not None:
            self._is_writer_paused = False
            self._call(self._protocol.resume_writing)
        if self._is_ended and not self._outbox:
            if peer and not peer._is_lost:
                self._send_end()
            if self._is_closing:
                self._lose(None)

    def _deliver_soon(self) -> None:
        if self._inbox and not self._is_due and self._protocol is not None:
            self._is_due = True
            self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        """Gives the protocol what has arrived, unless it reads nothing now."""
        self._is_due = False
        while self._inbox and not (self._is_paused or self._protocol is None or self._link.is_silenced):
            if self._is_closing:
                self._drop_unread()
                return
            data = self._take()
            if data:
                self._note_read(len(data))
                self._call(self._receive, data)
            elif not self._call(cast("asyncio.Protocol", self._protocol).eof_received):
                self.close()

    def _take(self) -> bytes:
        """The next bytes of the inbox, together, as the kernel would give them; or the end."""
        inbox = self._inbox
        data = inbox.popleft()
        if data and inbox and inbox[0]:
            pieces, size = [data], len(data)
            while inbox and inbox[0] and size + len(inbox[0]) <= _PIECE_BYTES:
                size += len(inbox[0])
                pieces.append(inbox.popleft())
            data = b"".join(pieces)
        return data

    def _receive(self, data: bytes) -> None:
        if self._is_buffered:
            _feed(cast("asyncio.BufferedProtocol", self._protocol), data)
        else:
            cast("asyncio.Protocol", self._protocol).data_received(data)

    def _note_read(self, size: int) -> None:
        self._unread_bytes -= size
        peer = self.peer
        if peer and peer._outbox:
            self._loop.call_soon(peer._flush, context=peer._context)

    def _drop_unread(self) -> None:
        size = sum(map(len, self._inbox))
        self._inbox.clear()
        self._note_read(size)

    def _call(self, call: Callable[..., Any], *args: object) -> Any:
        """Calls the protocol; what it raises ends the connection, as in asyncio's transports."""
        try:
            return call(*args)
        except Exception as exc:  # noqa: BLE001  # whatever a protocol raises
            context = {"message": "Fatal error on transport", "exception": exc, "transport": self}
            self._loop.call_exception_handler({**context, "protocol": self._protocol})
            self.abort()
        return True

    def _lose(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._end, exc, context=self._context)

    def _end(self, exc: Exception | None) -> None:
        link, peer = self._link, self.peer
        if self._protocol is not None:
            self._call(self._protocol.connection_lost, exc)
        self._protocol, self._is_over = None, True
        if peer is None or peer._is_over:  # no circle is left to the garbage collector
            link.wire.forget(link)
            link.near = link.far = self.peer = None
            if peer:
                peer.peer = None


_feed: Callable[[asyncio.BufferedProtocol, bytes], None] = vars(protocols)["_feed_data_to_buffered_proto"]


def join(loop: asyncio.AbstractEventLoop, link: Link, near_port: int) -> tuple[MemoryTransport, MemoryTransport]:
    """Returns both ends of a new connection: that of who connects, and the server's."""
    client, server = (link.of or "127.0.0.1", near_port), (link.server, link.port)
    near, far = MemoryTransport(loop, link, client, server), MemoryTransport(loop, link, server, client)
    near.peer, far.peer = far, near
    link.near, link.far = near, far
    return near, far
