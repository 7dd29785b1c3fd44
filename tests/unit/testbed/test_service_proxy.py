"""The proxy in place of kube-proxy: where it leads a connection, and what it says where there is nobody."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.service_proxy import LOOPBACK, egress_selection, open_service_proxy

SERVICE = ("10.0.0.7", 443)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    """A proxy's socket; behind it is one Service, whose pod answers each line with itself."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, LOOPBACK, 0)
    pod = server.sockets[0].getsockname()[1]

    async def locate(host: str, port: int) -> int | None:
        return pod if (host, port) == SERVICE else None

    path = tmp_path / "s"
    async with server, open_service_proxy(path, locate):
        yield path


async def ask(socket: Path, head: bytes) -> tuple[bytes, Streams]:
    """The first line of what the proxy answers, and the connection after its empty line."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(head)
    answer = await reader.readuntil(b"\r\n\r\n")
    return answer.partition(b"\r\n")[0], (reader, writer)


async def test_a_connection_leads_to_a_pod_of_the_service(socket: Path) -> None:
    """As kube-apiserver asks for it; bytes pass both ways."""
    status, (reader, writer) = await ask(socket, b"CONNECT 10.0.0.7:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert status == b"HTTP/1.1 200 OK"
    writer.write(b"review\n")
    assert await reader.readline() == b"review\n"
    writer.close()


@pytest.mark.parametrize(
    "head",
    [b"CONNECT 10.0.0.7:80 HTTP/1.1\r\n\r\n", b"CONNECT 10.0.0.8:443 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["port", "address", "method"],
)
async def test_what_leads_nowhere_is_refused(socket: Path, head: bytes) -> None:
    """And the connection ends."""
    status, (reader, writer) = await ask(socket, head)
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert await reader.read() == b""
    writer.close()


async def test_connections_that_are_open_at_the_end_are_reset(tmp_path: Path) -> None:
    """One that a pod has, and one that has not said yet where it leads."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, LOOPBACK, 0)
    pod: int = server.sockets[0].getsockname()[1]

    async def locate(host: str, port: int) -> int | None:
        return pod

    async with asyncio.timeout(10), server:
        async with open_service_proxy(tmp_path / "s", locate):
            undecided, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(b"CONNECT 10.0.0.7:4")
            status, (led, other) = await ask(tmp_path / "s", b"CONNECT 10.0.0.7:443 HTTP/1.1\r\n\r\n")
            assert status == b"HTTP/1.1 200 OK"
        assert [await each.read() for each in (undecided, led)] == [b"", b""]
    writer.close()
    other.close()


def test_the_api_server_asks_for_the_cluster_alone() -> None:
    """Its connections to etcd and to webhooks of other addresses stay as they are."""
    [selection] = egress_selection(Path("/run/s"))["egressSelections"]
    assert selection["name"] == "cluster"
    assert selection["connection"]["transport"]["uds"]["udsName"] == "/run/s"
