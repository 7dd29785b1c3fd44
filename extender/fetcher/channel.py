"""One end of the socket between the service and its fetcher."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from extender.fetcher.messages import FromFetcher, ProtocolError, ToFetcher, Unframer, frame


class Channel(asyncio.Protocol):
    """Sends messages, and calls `received` with each that comes. Closes at one that `received` does not accept."""

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """`received` raises ProtocolError for a message that is none. `ended` is called once, whoever ended it."""
        self._received = received
        self._ended = ended
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self.is_garbled = False

    @classmethod
    async def over(cls, end: socket.socket, received: Callable[[bytes], None], ended: Callable[[], None]) -> "Channel":
        """Returns the channel over a connected socket, which it closes at its end."""
        channel = cls(received, ended)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
        return channel

    def send(self, message: ToFetcher | FromFetcher) -> None:
        """Sends the message, or nothing once the channel has ended. Raises ProtocolError if it is too long."""
        framed = frame(message)
        if self._transport:
            self._transport.write(framed)

    def close(self) -> None:
        """Ends the channel when what was sent has left."""
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        """Passes on what is complete."""
        try:
            for message in self._unframer.feed(data):
                self._received(message)
        except ProtocolError:
            self.is_garbled = True
            if self._transport:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        del exc
        self._transport = None
        self._ended()
