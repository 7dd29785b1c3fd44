"""HTTP spoken by hand to a listener."""

import asyncio
import email
from contextlib import suppress
from email.message import Message

from extender.server.http import Listener

_MOST_SECONDS = 60


class RawConnection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> tuple[int, Message, bytes]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(_MOST_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            line, _, fields = head.partition("\r\n")
            headers = email.message_from_string(fields)
            return int(line.split()[1]), headers, await self.reader.readexactly(int(headers["Content-Length"]))

    async def ends(self) -> bytes:
        """What arrives until the other side ends the connection."""
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), _MOST_SECONDS)
        return b""

    async def abort(self) -> None:
        """Hangs up, whatever state the connection is in."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def port_of(listener: Listener) -> int:
    return int(listener.address.rpartition(":")[2])
