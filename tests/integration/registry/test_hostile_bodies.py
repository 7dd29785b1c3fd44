"""Whatever a registry or token server sends: bounded memory, an end, and a reason; odd ones that nodes read are read.

The servers write bytes as they come to mind, so that they can say what no honest HTTP library lets one say.
"""

import asyncio
import contextlib
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from extender.credentials.keyring import ANONYMOUS
from extender.errors import ExtenderError, RegistryUnavailable
from extender.images.content import Cause, Failure
from extender.images.failures import failure_of
from extender.images.manifest import Image
from extender.images.reference import digest_of, parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.auth import MAX_DOCUMENT_BYTES
from extender.registry.http import Response, open_session, send
from extender.registry.image_description import describe_image
from extender.registry.registry_client import RegistryClient
from testbed.images import OCI
from tests.integration.registry.conftest import talking

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]

MIB = 2**20
CHUNK_BYTES = 65536
DIGEST = digest_of(b"a child")
ENDLESS = 64 * MIB  # as good as endless: sixteen times what is read
# A document (4 MiB), its copy as bytes, a chunk on its way, the same at the server, and what it is decoded to.
PEAK_BYTES = 24 * MIB


def head(*headers: str, status: str = "200 OK") -> bytes:
    """The head of an answer, by itself that of an index; the connection is closed after it."""
    kind = [] if any(header.startswith("Content-Type") for header in headers) else [f"Content-Type: {OCI.index}"]
    lines = [f"HTTP/1.1 {status}", "Connection: close", *kind, *headers, "", ""]
    return "\r\n".join(lines).encode()


def says(*chunks: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                writer.write(chunk[start : start + CHUNK_BYTES])
                await writer.drain()

    return script


def sends(body: bytes, *headers: str) -> Script:
    return says(head(f"Content-Length: {len(body)}", *headers), body)


def repeats(*start: bytes, chunk: bytes) -> Script:
    return says(*start, *(chunk for _ in range(ENDLESS // len(chunk))))


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(head("Content-Length: 1000000"))
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.002)


async def drip_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-")
    while not writer.is_closing():
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.002)


def filled(start: bytes, middle: bytes, end: bytes = b"") -> bytes:
    times = (MAX_DOCUMENT_BYTES - len(start) - len(end)) // len(middle)
    return start + middle * times + end


def entries(count: int, entry: str) -> bytes:
    """An index of `count` entries; `%d` in one is its number."""
    return b'{"manifests":[%s]}' % ",".join([entry.replace("%d", str(number)) for number in range(count)]).encode()


PLATFORM = f'{{"mediaType":"{OCI.manifest}","digest":"{DIGEST}","platform":{{"os":"linux","architecture":"fake%d"}}}}'
MANIFEST = f'{{"mediaType":"{OCI.manifest}","config":{{"mediaType":"{OCI.config}","digest":"%s","size":1}}}}'
ZEROS = gzip.compress(bytes(ENDLESS), compresslevel=1)

CHUNKED = head("Transfer-Encoding: chunked")
OK = b"HTTP/1.1 200 OK\r\n"
HOSTILE = {
    "gzip bomb": (sends(ZEROS, "Content-Encoding: gzip"), Cause.UNAVAILABLE),
    "endless body": (repeats(head(), chunk=bytes(MIB)), Cause.INVALID),
    "endless chunks": (repeats(CHUNKED, chunk=b"10000\r\n" + bytes(CHUNK_BYTES) + b"\r\n"), Cause.INVALID),
    "endless chunk size": (repeats(CHUNKED, b"1;", chunk=b"a" * CHUNK_BYTES), Cause.UNAVAILABLE),
    "tiny chunks": (says(CHUNKED, b"1\r\na\r\n" * 20_000, b"0\r\n\r\n"), Cause.UNAVAILABLE),
    "endless trailers": (repeats(CHUNKED, b"0\r\n", chunk=b"X-Trailer: a\r\n" * 5000), Cause.UNAVAILABLE),
    "endless headers": (repeats(OK, chunk=b"X-A: b\r\n" * 8192), Cause.UNAVAILABLE),
    "endless header": (repeats(OK, b"X-A: ", chunk=b"a" * CHUNK_BYTES), Cause.UNAVAILABLE),
    "endless status line": (repeats(b"HTTP/1.1 200 ", chunk=b"a" * CHUNK_BYTES), Cause.UNAVAILABLE),
    "nested lists": (sends(b"[" * MAX_DOCUMENT_BYTES), Cause.UNAVAILABLE),
    "100,000 platforms": (sends(entries(100_000, PLATFORM)), Cause.INVALID),
    "endless 404": (repeats(head(status="404 Not Found"), chunk=bytes(MIB)), Cause.MISSING),
    "endless 429": (repeats(head(status="429 Too Many"), chunk=bytes(MIB)), Cause.THROTTLED),
    "endless redirect": (repeats(head("Location: /v2/", status="307 There"), chunk=bytes(MIB)), Cause.UNAVAILABLE),
    "long challenge": (says(head("WWW-Authenticate: Bearer " + "a=" * 3900, status="401 Who")), Cause.UNAVAILABLE),
}


class Server:
    """Speaks HTTP by script: by that whose name is a part of the path, else by that of `manifests`."""

    def __init__(self, **scripts: Script) -> None:
        self.scripts = scripts
        self.host = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
        name = next((name for name in self.scripts if f"/{name}" in path), "manifests")
        await self.scripts[name](writer)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES


async def learn(server: Server, timeout_seconds: float = 30.0) -> Image:
    guard = AddressGuard(allow=[server.host])
    reference = parse_reference(f"{server.host}/team/app:1")
    async with open_session(guard=guard) as session:
        plain = frozenset({server.host})
        client = RegistryClient(session, timeout_seconds=timeout_seconds, plain_http=plain, machine=THIS_MACHINE)
        manifest = await client.fetch_manifest(reference, ANONYMOUS)
        return await describe_image(client, reference.with_digest(manifest.digest), manifest, ANONYMOUS)


async def failure(server: Server, timeout_seconds: float = 30.0) -> Failure:
    with little_memory():
        async with talking(server.talk) as server.host:
            with pytest.raises(ExtenderError) as caught:
                await learn(server, timeout_seconds)
    assert len(str(caught.value)) < 300
    return failure_of(caught.value)


@pytest.mark.parametrize(("script", "cause"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_manifest(script: Script, cause: Cause) -> None:
    assert (await failure(Server(manifests=script))).cause is cause


CONTINUES = repeats(b"", chunk=b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@pytest.mark.parametrize("script", [drip, drip_headers, CONTINUES], ids=["body", "headers", "continue"])
async def test_slow_drip(script: Script) -> None:
    """What never ends is given up when its time is over, however much comes."""
    assert (await failure(Server(manifests=script), timeout_seconds=0.1)).cause is Cause.UNAVAILABLE


@pytest.mark.parametrize(
    "body", [filled(b'{"os":"linux","rootfs":', b"["), bytes(MAX_DOCUMENT_BYTES + 1)], ids=["nested-lists", "too-long"]
)
async def test_hostile_config(body: bytes) -> None:
    """The same, one document further on: its digest is right, its content is not."""
    manifest = sends((MANIFEST % digest_of(body)).encode(), f"Content-Type: {OCI.manifest}")
    assert (await failure(Server(manifests=manifest, blobs=sends(body)))).cause is Cause.INVALID


def guarded(token: Script) -> Server:
    async def asks(writer: asyncio.StreamWriter) -> None:
        challenge = f'WWW-Authenticate: Bearer realm="http://{server.host}/token"'
        await says(head(challenge, "Content-Length: 0", status="401 Unauthorized"))(writer)

    return (server := Server(manifests=asks, token=token))


@pytest.mark.parametrize(
    ("script", "seconds"),
    [(sends(ZEROS, "Content-Encoding: gzip"), 30), (repeats(head(), chunk=bytes(MIB)), 30),
     (sends(b'{"x":' + b"[" * 500_000), 30), (drip, 0.1)],
    ids=["gzip-bomb", "endless-body", "nested-lists", "drip"],
)  # fmt: skip
async def test_hostile_token(script: Script, seconds: float) -> None:
    """The same, for a token server, whose time is a part of the registry's: there is no token, and so no answer."""
    assert (await failure(guarded(token=script), seconds)).cause in (Cause.UNAVAILABLE, Cause.DENIED)


BODY = b'{"a":1}'
LENGTH = b"Content-Length: 7\r\n"


@asynccontextmanager
async def serving(answer: bytes, pieces: int = 1 << 20) -> AsyncIterator[URL]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(answer), pieces):
            writer.write(answer[start : start + pieces])
            await writer.drain()
            await asyncio.sleep(0)

    async with talking(talk) as host:
        yield URL(f"http://{host}/v2/x")


async def read(session: aiohttp.ClientSession, url: URL, method: str = "GET") -> Response:
    return await send(session, method, url, headers={}, limit_bytes=100, seconds=60)


@pytest.mark.parametrize("pieces", [1 << 20, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(OK + LENGTH + b"A: b\r\n\r\n" + BODY, id="usual"),
        pytest.param(OK + b"\r\n" + BODY, id="ends-with-the-connection"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 5 + OK + LENGTH + b"\r\n" + BODY, id="continue"),
        pytest.param(
            OK + b"Transfer-Encoding: chunked\r\n\r\n007 ;a\r\n" + BODY + b"\r\n0\r\nB: c\r\n\r\n", id="chunks"
        ),
    ],
)
async def test_answer_that_nodes_read_is_read(session: aiohttp.ClientSession, answer: bytes, pieces: int) -> None:
    async with serving(answer, pieces) as url:
        response = await read(session, url)
    assert (response.status, response.body) == (200, BODY)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "header",
    [b"A: " + b"a" * 9_000, b"A: " + b"a" * 60_000, b"\r\n".join(b"A-%d: a" % number for number in range(1_000))],
    ids=["9000", "60000", "a-thousand"],
)
async def test_long_headers_are_read(session: aiohttp.ClientSession, header: bytes, method: str) -> None:
    """Up to 64 KiB of them."""
    async with serving(OK + LENGTH + header + b"\r\nZ: last\r\n\r\n" + (BODY if method == "GET" else b"")) as url:
        response = await read(session, url, method)
    assert (response.status, response.headers["Z"]) == (200, "last")


async def test_more_than_five_interim_answers_are_refused(session: aiohttp.ClientSession) -> None:
    """Each costs as much to read as a final one, and nobody sends more than two."""
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" * 6) as url:
        with pytest.raises(RegistryUnavailable, match="sent more than an answer may have"):
            await read(session, url)


async def test_a_long_body_in_chunks_is_read(session: aiohttp.ClientSession) -> None:
    """It comes faster than it is read."""
    body = bytes(3 << 20)
    chunks = b"".join(b"400\r\n" + body[start : start + 1024] + b"\r\n" for start in range(0, len(body), 1024))
    async with serving(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", 8 << 20) as url:
        assert (await send(session, "GET", url, headers={}, limit_bytes=4 << 20, seconds=60)).body == body


async def test_chunks_of_a_byte_without_end_are_refused(session: aiohttp.ClientSession) -> None:
    """Each byte of the body has five more beside it."""
    async with serving(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n") as url:
        with pytest.raises(RegistryUnavailable, match="sent more than an answer may have"):
            await send(session, "GET", url, headers={}, limit_bytes=1 << 20, seconds=60)


@pytest.mark.parametrize(
    "header",
    [b"A: " + b"a" * 400_000, b"\r\n".join(b"A-%d: a" % number for number in range(40_000))],
    ids=["one", "many"],
)
async def test_headers_beyond_all_measure_are_refused(session: aiohttp.ClientSession, header: bytes) -> None:
    """Real ones have 2 KB."""
    async with serving(OK + LENGTH + header + b"\r\n\r\n" + BODY) as url:
        with pytest.raises(RegistryUnavailable):
            await read(session, url)


async def test_chunks_without_carriage_returns_are_an_error(session: aiohttp.ClientSession) -> None:
    """At once, and not when the time is over."""
    async with serving(OK + b"Transfer-Encoding: chunked\r\n\r\n7\n" + BODY + b"\n0\n\n") as url:
        with pytest.raises(RegistryUnavailable, match="is no HTTP answer"):
            await read(session, url)
