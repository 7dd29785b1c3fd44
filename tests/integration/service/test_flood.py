"""A flood against a real `serve` process: the API server is answered, and memory stays where it was."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest
import trustme

from extender.server.http import ADMISSION
from tests.integration.service.caller import pod, review_of

BODY = msgspec.json.encode(review_of(pod()))


class ServedWebhook:
    """A `serve` process with a TLS listener for reviews, and connections to it."""

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, int], tls: ssl.SSLContext) -> None:
        self.process = process
        self.ports = ports
        self._tls = tls
        self.opened = AsyncExitStack()

    async def connect(self, *, plain: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection, with TLS unless `plain`; None if it is refused."""
        name = None if plain else "localhost"
        context = None if plain else self._tls
        with suppress(ConnectionError):
            made = await asyncio.open_connection(
                "127.0.0.1", self.ports["admission"], ssl=context, server_hostname=name
            )
            self.opened.push_async_callback(_abort, made[1])
            return made
        return None

    def resident_bytes(self) -> int:
        """The memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def refusals(self, reason: str) -> float:
        """How often the listeners have refused something for want of it."""
        url = f"http://127.0.0.1:{self.ports['operations']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            lines = (await response.text()).splitlines()
        series = f'multiarch_listener_refusals_total{{reason="{reason}"}} '
        return float(next(line for line in lines if line.startswith(series)).removeprefix(series))


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def review(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """The status line of the answer to a review as the API server sends it."""
    reader, writer = connection
    head = f"POST /admission/pods HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    answered = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    await reader.readexactly(int(answered.lower().partition(b"content-length: ")[2].split()[0]))
    return answered.partition(b"\r\n")[0]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[ServedWebhook]:
    """The process, which has ended by itself and well when the context ends."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    leaf.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    settings = (
        "cluster=none", "scheduler.listen=", "admission.listen=127.0.0.1:0", "operations.listen=127.0.0.1:0",
        f"admission.tls.certificate={folder / 'tls.crt'}", f"admission.tls.key={folder / 'tls.key'}",
        "cache.url='memory:'",
        "shutdown.grace_seconds=5",
    )  # fmt: skip
    options = [option for setting in settings for option in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extender", "serve", *options), stderr=subprocess.PIPE
    )
    assert process.stderr
    ports: dict[str, int] = {}
    while len(ports) < 2:
        event = json.loads(await asyncio.wait_for(process.stderr.readline(), 30))
        if event["event"] == "listener.opened":
            ports[event["listener"]] = int(event["address"].rpartition(":")[2])
    drained = asyncio.create_task(process.stderr.read())
    client = ssl.create_default_context()
    authority.configure_trust(client)
    served = ServedWebhook(process, ports, client)
    try:
        async with served.opened:
            yield served
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        said = await drained
    assert b"Traceback" not in said, said.decode()
    assert said.count(b"\n") < 20, said.decode()


pytestmark = pytest.mark.slow


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedWebhook]:
    """The process for this test."""
    async with serving(tmp_path) as running:
        yield running


async def test_flood_of_connections_harms_the_flood_alone(served: ServedWebhook) -> None:
    """Thousands that begin no handshake: a connection in use is kept, and new ones come in soon."""
    api_server = await served.connect()
    assert api_server
    assert await review(api_server) == b"HTTP/1.1 200 OK"
    for _ in range(3_000):
        await served.connect(plain=True)
    assert await review(api_server) == b"HTTP/1.1 200 OK"
    for _ in range(20):
        another = await served.connect()
        assert another
        assert await review(another) == b"HTTP/1.1 200 OK"
    assert await review(api_server) == b"HTTP/1.1 200 OK"
    assert await served.refusals("connections") >= 3_000 - ADMISSION.connections


async def test_slow_bodies_take_no_more_memory_than_their_limit(served: ServedWebhook) -> None:
    """500 connections send 200 MB that never end; TLS keeps some 100 KB for each of them besides."""
    api_server = await served.connect()
    assert api_server
    assert await review(api_server) == b"HTTP/1.1 200 OK"
    slow = []
    for _ in range(500):
        made = await served.connect()
        assert made
        slow.append(made[1])
    before = served.resident_bytes()
    largest = before
    for writer in slow:
        writer.write(b"POST /admission/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + b"x" * 400_000)
        with suppress(ConnectionError):
            await asyncio.wait_for(writer.drain(), 10)
        largest = max(largest, served.resident_bytes())
    assert await review(api_server) == b"HTTP/1.1 200 OK"
    assert await served.refusals("bytes") > 300
    assert max(largest, served.resident_bytes()) - before < 140_000_000
    del slow
