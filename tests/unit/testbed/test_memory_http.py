"""HTTP in memory: between its own ends, and with aiohttp's."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from testbed.memory_http import Client, Request, Response, serve_http
from testbed.memory_network import Network, run_in_memory

URL = "http://10.0.0.7:6443"


def test_requests_arrive_whole_and_connections_stay() -> None:
    async def run(network: Network) -> None:
        seen: list[Request] = []

        async def handle(request: Request) -> Response:
            seen.append(request)
            return Response(201, request.body, {"X-Kind": "Pod"})

        serve_http(network, "10.0.0.7", 6443, handle)
        client = Client(network, "10.0.0.1")
        for body in (b"", b"body"):
            answer = await client.request("PUT", f"{URL}/a%2Fb?x=1&y=", body, {"Accept": "json"}, timeout_seconds=1)
            assert (answer.status, answer.body, answer.headers["x-kind"]) == (201, body, "Pod")
        assert seen[1].path == "/a/b"
        assert (seen[1].query, seen[1].caller, seen[1].headers["accept"]) == ({"x": "1", "y": ""}, "10.0.0.1", "json")
        assert len(network.links) == 1
        answer = await client.request("HEAD", URL, timeout_seconds=1)
        assert (answer.body, answer.headers["content-length"]) == (b"", "0")
        network.cut("10.0.0.7")
        assert (await client.request("GET", URL, timeout_seconds=1)).status == 201

    run_in_memory(run)


def test_a_caller_that_goes_away_cancels_the_handler_and_a_raise_is_a_500() -> None:
    async def run(network: Network) -> None:
        ended: list[str] = []

        async def handle(request: Request) -> Response:
            if request.path == "/raise":
                raise ValueError
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                ended.append(request.path)
                raise
            return Response()

        serve_http(network, "10.0.0.7", 6443, handle)
        client = Client(network, "10.0.0.1")
        with pytest.raises(TimeoutError):
            await client.request("GET", f"{URL}/slow", timeout_seconds=3)
        await asyncio.sleep(1)
        assert ended == ["/slow"]
        errors: list[object] = []
        network.loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        assert (await client.request("GET", f"{URL}/raise", timeout_seconds=3)).status == 500
        with pytest.raises(ConnectionError):
            await client.request("GET", "http://10.0.0.8/", timeout_seconds=3)

    run_in_memory(run)


def test_a_stream_ends_in_order_or_cuts_the_connection() -> None:
    async def run(network: Network) -> None:
        async def events(*, fails: bool) -> AsyncIterator[bytes]:
            for each in range(3):
                await asyncio.sleep(1)
                yield b"%d\n" % each
            if fails:
                raise ConnectionResetError

        async def handle(request: Request) -> Response:
            return Response(stream=events(fails=request.path == "/fails"))

        serve_http(network, "10.0.0.7", 6443, handle)
        client = Client(network, "10.0.0.1")
        assert (await client.request("GET", URL, timeout_seconds=9)).body == b"0\n1\n2\n"
        with pytest.raises(ConnectionError):
            await client.request("GET", f"{URL}/fails", timeout_seconds=9)
        async with aiohttp.ClientSession() as session, session.get(URL) as response:
            lines = [(line, network.loop.time()) async for line in response.content]
            assert [line for line, _ in lines] == [b"0\n", b"1\n", b"2\n"]
            assert lines[2][1] - lines[0][1] == 2
            async with session.get(f"{URL}/fails") as failing:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await failing.read()

    run_in_memory(run)


def test_it_speaks_with_aiohttps_server_and_client() -> None:
    async def run(network: Network) -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(await request.read())
            await response.write(b"!")
            return response

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "10.0.0.7", 80).start()
        client = Client(network, "")
        for _ in range(2):
            answer_read = await client.request("POST", "http://10.0.0.7/", b"body", timeout_seconds=1)
            assert answer_read.body == b"body!"

        async def echo(request: Request) -> Response:
            return Response(200, request.body)

        serve_http(network, "10.0.0.8", 80, echo)
        async with aiohttp.ClientSession() as session:
            for data in (b"x" * 700_000, b"", b"y"):
                async with session.post("http://10.0.0.8/", data=data) as response:
                    assert await response.read() == data
        await runner.cleanup()

    run_in_memory(run)
