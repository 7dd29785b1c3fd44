"""What bounds a fetcher and has no public interface, as the installed Python has it."""

import asyncio
import ssl
from asyncio import sslproto

import pytest
import trustme

from extender.fetcher.bounds import bound_tls

MIB = 1 << 20


class Receiver(asyncio.Protocol):
    """Notes how much each read gives."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.pieces.append(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def test_tls_reads_little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as a connection keeps room for; a piece may have the rest of a record of 16 KB besides."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)  # put back at the end
    bound_tls()
    authority, served = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (4 * MIB))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(send, "127.0.0.1", 0, ssl=served) as server:
        port = server.sockets[0].getsockname()[1]
        _, receiver = await asyncio.get_running_loop().create_connection(Receiver, "127.0.0.1", port, ssl=trusting)
        async with asyncio.timeout(60):
            await receiver.ended.wait()
    assert sum(receiver.pieces) == 4 * MIB
    assert max(receiver.pieces) <= 32 << 10
