"""Answers that registries send and that nodes read, byte for byte over a connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from extender.errors import RegistryUnavailable
from extender.registry.http import Response, send

HEAD = b"HTTP/1.1 200 OK\r\n"
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
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v2/x")


async def ask(session: aiohttp.ClientSession, url: URL, method: str = "GET") -> Response:
    return await send(session, method, url, headers={}, limit_bytes=100)


@pytest.mark.parametrize("pieces", [1 << 20, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + LENGTH + b"A: b\r\n\r\n" + BODY, id="usual"),
        pytest.param(HEAD + b"\r\n" + BODY, id="ends-with-the-connection"),
        pytest.param(HEAD + LENGTH + b"\r\n" + BODY + b"behind it", id="more-behind-it"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 5 + HEAD + LENGTH + b"\r\n" + BODY, id="continue"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n007 ;a\r\n" + BODY + b"\r\n0\r\nB: c\r\n\r\n", id="chunks"
        ),
    ],
)
async def test_answer_that_nodes_read_is_read(session: aiohttp.ClientSession, answer: bytes, pieces: int) -> None:
    """Whatever its framing, and however it comes."""
    async with serving(answer, pieces) as url:
        response = await ask(session, url)
    assert (response.status, response.body) == (200, BODY)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "header",
    [b"A: " + b"a" * 9_000, b"A: " + b"a" * 60_000, b"\r\n".join(b"A-%d: a" % number for number in range(1_000))],
    ids=["9000", "60000", "a-thousand"],
)
async def test_long_headers_are_read(session: aiohttp.ClientSession, header: bytes, method: str) -> None:
    """Up to 64 KiB of them."""
    async with serving(HEAD + LENGTH + header + b"\r\nZ: last\r\n\r\n" + (BODY if method == "GET" else b"")) as url:
        response = await ask(session, url, method)
    assert (response.status, response.headers["Z"]) == (200, "last")


async def test_more_than_five_interim_answers_are_refused(session: aiohttp.ClientSession) -> None:
    """Each costs as much to read as a final one, and nobody sends more than two."""
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" * 6 + HEAD + LENGTH + b"\r\n" + BODY) as url:
        with pytest.raises(RegistryUnavailable, match="sent more than an answer may have"):
            await ask(session, url)


@pytest.mark.parametrize(
    ("chunk", "is_read"),
    [(b"400\r\n" + (b" " * 38 + b"\r\n") * 25 + b" " * 24 + b"\r\n", True), (b"1\r\n \r\n", False)],
    ids=["a-kilobyte-with-lines", "a-byte"],
)
async def test_chunks_of_a_byte_are_refused(session: aiohttp.ClientSession, chunk: bytes, is_read: bool) -> None:
    """When they are thousands."""
    async with serving(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 5_000 + b"0\r\n\r\n") as url:
        if is_read:
            assert (await ask(session, url)).truncated
        else:
            with pytest.raises(RegistryUnavailable, match="sent more than an answer may have"):
                await ask(session, url)


@pytest.mark.parametrize(
    "header",
    [b"A: " + b"a" * 70_000, b"\r\n".join(b"A-%d: a" % number for number in range(10_000))],
    ids=["one", "many"],
)
async def test_headers_beyond_all_measure_are_refused(session: aiohttp.ClientSession, header: bytes) -> None:
    """Real ones have 2 KB."""
    async with serving(HEAD + LENGTH + header + b"\r\n\r\n" + BODY) as url:
        with pytest.raises(RegistryUnavailable, match="sent more than an answer may have"):
            await ask(session, url)


async def test_body_behind_a_head_is_nobodys(session: aiohttp.ClientSession) -> None:
    """A server that answers a HEAD with a body does not have it taken for the next answer."""
    async with serving(HEAD + LENGTH + b"\r\n" + BODY) as url:
        for _ in range(2):
            assert (await ask(session, url, "HEAD")).status == 200


async def test_chunks_that_nodes_do_not_read_are_an_error(session: aiohttp.ClientSession) -> None:
    """At once, and not when the time is over."""
    async with serving(HEAD + b"Transfer-Encoding: chunked\r\n\r\n7\n" + BODY + b"\n0\n\n") as url:
        with pytest.raises(RegistryUnavailable, match="broke off the connection"):
            await ask(session, url)
