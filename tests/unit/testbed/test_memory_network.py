"""The event loop in memory: its clock, its connections, their faults, and aiohttp over it."""

import asyncio
import contextvars
import ssl
import time

import aiohttp
import pytest
import trustme
from aiohttp import web

from testbed.memory_http import Request, Response, serve_http
from testbed.memory_listening import PARTY, Party
from testbed.memory_network import MemoryLoop, Network, run_in_memory
from testbed.memory_transport import WINDOW_BYTES

HOST, PORT = "10.0.0.7", 80


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.events.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(type(exc).__name__ if exc else "closed")

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")


async def connected(network: Network, *, of: str = "10.0.0.1") -> tuple[Recorder, Recorder]:
    server = Recorder()
    listening = network.listen(HOST, PORT, lambda: server)
    _, client = await network.connect(Recorder, HOST, PORT, of=of)
    await turns()
    listening.close()
    assert isinstance(client, Recorder)
    return client, server


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_time_jumps_to_the_next_timer_and_work_of_threads_takes_none() -> None:
    async def run(network: Network) -> None:
        variable = contextvars.ContextVar("variable", default=0)
        variable.set(7)
        assert await asyncio.to_thread(variable.get) == 7
        began_at = network.loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        assert network.loop.time() == began_at + 3600
        assert network.wall_clock() - 3600 == pytest.approx(1_800_000_000)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    began_at = time.monotonic()
    run_in_memory(run)
    assert time.monotonic() - began_at < 60


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    async def run(_: Network) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is set"):
        run_in_memory(run)


def test_equal_timers_run_in_an_order_that_the_seed_draws() -> None:
    def order(seed: int | None) -> list[int]:
        async def run(network: Network) -> list[int]:
            ran: list[int] = []
            for each in range(20):
                network.loop.call_at(1.0, ran.append, each)
            await asyncio.sleep(2)
            return ran

        return run_in_memory(run, seed=seed)

    assert order(None) == list(range(20))
    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(20))


def test_bytes_arrive_in_order_and_the_end_after_them() -> None:
    async def run(network: Network) -> None:
        network.latency_seconds = 0.01
        client, server = await connected(network)
        for each in range(50):
            client.transport.write(b"%d," % each)
        client.transport.close()
        await asyncio.sleep(1)
        assert server.received == b"".join(b"%d," % each for each in range(50))
        assert server.events == ["end", "closed"]
        assert client.events == ["closed"]
        assert not network.links

    run_in_memory(run)


def test_a_writer_pauses_while_nobody_reads() -> None:
    async def run(network: Network) -> None:
        client, server = await connected(network)
        await turns()
        server.transport.pause_reading()
        sent = b"x" * (WINDOW_BYTES + 100_000)
        client.transport.write(sent)
        await turns()
        assert (client.events, server.received) == (["paused"], b"")
        assert client.transport.get_write_buffer_size() == 100_000
        server.transport.resume_reading()
        await turns()
        assert client.events == ["paused", "resumed"]
        assert server.received == sent

    run_in_memory(run)


def test_an_aborted_writer_loses_what_was_beyond_the_window() -> None:
    async def run(network: Network) -> None:
        client, server = await connected(network)
        await turns()
        client.transport.write(b"x" * (WINDOW_BYTES + 1))
        client.transport.abort()
        await turns()
        assert (len(server.received), server.events) == (WINDOW_BYTES, ["end", "closed"])

    run_in_memory(run)


def test_writing_to_one_that_is_gone_resets() -> None:
    async def run(network: Network) -> None:
        client, server = await connected(network)
        server.transport.abort()
        client.transport.write(b"late")
        await turns()
        assert client.events[-1] == "ConnectionResetError"

    run_in_memory(run)


def test_a_cut_resets_both_ends_of_what_concerns_the_place_alone() -> None:
    async def run(network: Network) -> None:
        cut, other = await connected(network), await connected(network, of="10.0.0.2")
        network.cut(HOST, of="10.0.0.1")
        await turns()
        assert [each.events for each in (*cut, *other)] == [["ConnectionResetError"]] * 2 + [[]] * 2
        network.cut(f"{HOST}:{PORT}")
        await turns()
        assert other[1].events == ["ConnectionResetError"]

    run_in_memory(run)


def test_in_silence_open_connections_die_and_new_ones_wait_for_its_end() -> None:
    async def run(network: Network) -> None:
        client, server = await connected(network)
        network.silence(HOST, True)
        client.transport.write(b"lost")
        network.listen(HOST, PORT, Recorder)
        connecting = asyncio.create_task(network.connect(Recorder, HOST, PORT))
        await asyncio.sleep(60)
        assert (server.received, client.events, connecting.done()) == (b"", [], False)
        network.silence(HOST, False)
        await connecting
        client.transport.write(b"lost too")
        client.transport.close()
        await turns()
        assert (server.received, server.events, client.events) == (b"", [], ["closed"])

    run_in_memory(run)


def test_refused_unknown_and_delayed_places() -> None:
    async def run(network: Network) -> None:
        with pytest.raises(OSError, match="Name or service"):
            await network.connect(Recorder, "registry.example.com", 443)
        network.names["registry.example.com"] = HOST
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, "registry.example.com", PORT)
        server = Recorder()
        network.listen(HOST, PORT, lambda: server)
        network.refuse(HOST, True)
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, HOST, PORT)
        network.refuse(HOST, False)
        network.delay(HOST, 2.0)
        transport, _ = await network.connect(Recorder, HOST, PORT)
        assert network.loop.time() == 2.0
        transport.write(b"late")
        await asyncio.sleep(1.9)
        assert len(server.received) == 0
        await asyncio.sleep(0.2)
        assert server.received == b"late"

    run_in_memory(run)


def test_a_party_that_is_gone_reaches_nobody() -> None:
    async def run(network: Network) -> None:
        party, server = Party("10.0.0.9"), Recorder()
        context = contextvars.copy_context()
        context.run(PARTY.set, party)
        network.listen(HOST, PORT, lambda: server)
        ended: list[str] = []

        async def work() -> None:
            network.listen("", 8443, Recorder)
            await network.loop.create_connection(Recorder, HOST, PORT)
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                with pytest.raises(ConnectionRefusedError):
                    await network.loop.create_connection(Recorder, HOST, PORT)
                ended.append("ended")

        network.loop.create_task(work(), context=context)
        await turns()
        assert server.transport.get_extra_info("peername")[0] == "10.0.0.9"
        transport, _ = await network.connect(Recorder, "10.0.0.9", 8443)
        network.end(party)
        await turns(10)
        assert (ended, server.events, transport.is_closing()) == (["ended"], ["ConnectionResetError"], True)
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, "10.0.0.9", 8443)

    run_in_memory(run)


@pytest.mark.parametrize("is_secured", [False, True])
def test_aiohttps_server_and_client_speak_over_it(is_secured: bool) -> None:
    server_tls, client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority = trustme.CA()
    authority.issue_cert("registry.example.com").configure_cert(server_tls)
    authority.configure_trust(client_tls)

    async def answer(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(10)
        return web.Response(body=await request.read() + b"!")

    async def run(network: Network) -> None:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, HOST, 0, ssl_context=server_tls if is_secured else None).start()
        network.names["registry.example.com"] = HOST
        url = f"{'https' if is_secured else 'http'}://registry.example.com:{runner.addresses[0][1]}/"
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(url, data=b"x" * 1_000_000, ssl=client_tls) as response:
                    assert await response.read() == b"x" * 1_000_000 + b"!"
            assert network.loop.time() == pytest.approx(20, abs=1)
            with pytest.raises(TimeoutError):
                await session.post(url, ssl=client_tls, timeout=aiohttp.ClientTimeout(total=3))
        await runner.cleanup()

    run_in_memory(run)


def test_who_waits_for_aiohttp_to_resolve_a_name_goes_on_in_order() -> None:
    asked: list[str] = []

    async def answer(request: Request) -> Response:
        asked.append(request.path)
        return Response()

    async def run(network: Network) -> None:
        network.names["registry.example.com"] = HOST
        serve_http(network, HOST, PORT, answer)
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(session.get(f"http://registry.example.com/{number}") for number in range(30)))

    run_in_memory(run)
    asked.remove("/0")  # of who had it resolved
    assert asked == [f"/{number}" for number in range(1, 30)]


def test_the_loop_is_one_that_a_runner_closes() -> None:
    with asyncio.Runner(loop_factory=MemoryLoop) as runner:
        assert runner.run(asyncio.sleep(5, "result")) == "result"


@pytest.mark.parametrize("latency_seconds", [0.0, 0.1])
def test_a_protocol_is_called_in_the_context_of_its_own_party(latency_seconds: float) -> None:
    seen: list[Party | None] = []

    class Noting(Recorder):
        def data_received(self, data: bytes) -> None:
            seen.append(PARTY.get())

        def connection_lost(self, exc: Exception | None) -> None:
            seen.append(PARTY.get())

    async def run(network: Network) -> None:
        network.latency_seconds = latency_seconds
        server, client = Party(HOST), Party("10.0.0.1")

        async def listen() -> None:
            listening = network.bind("", PORT)
            accepted, _ = await network.loop.sock_accept(listening)
            await asyncio.sleep(0.05)
            await network.loop.connect_accepted_socket(Noting, accepted)

        async def connect() -> None:
            transport, _ = await network.loop.create_connection(Recorder, HOST, PORT)
            transport.write(b"early")
            await asyncio.sleep(1)
            transport.write(b"late")
            await asyncio.sleep(1)
            transport.close()

        tasks = []
        for party, work in ((server, listen()), (client, connect())):
            context = contextvars.copy_context()
            context.run(PARTY.set, party)
            tasks.append(network.loop.create_task(work, context=context))
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        assert seen == [server] * 3
        seen.clear()
        context = contextvars.copy_context()
        context.run(PARTY.set, client)
        network.listen(HOST, PORT + 1, Noting)
        transport, _ = await network.loop.create_task(
            network.loop.create_connection(Recorder, HOST, PORT + 1), context=context
        )
        transport.abort()
        await asyncio.sleep(1)
        assert seen == [None]

    run_in_memory(run)
