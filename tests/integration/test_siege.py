"""The parts of the siege do what they are told: its registries, name server, API server, callers, and the watch."""

import asyncio
import signal
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from benchmarks.siege.api_server import ENTRIES, PODS, ApiServer
from benchmarks.siege.callers import Caller, CallFailed
from benchmarks.siege.images import platforms_of
from benchmarks.siege.memory_limit import MemoryLimit
from benchmarks.siege.name_server import NameServer
from benchmarks.siege.network import ATTACKING_REGISTRY, HONEST_REGISTRIES
from benchmarks.siege.records import DelayRecord, HoldRecord, read_records
from benchmarks.siege.registries import Registries
from benchmarks.siege.timers import note_delays
from benchmarks.siege.watched_service import LoopWatch
from extender.credentials.logins import decode_docker_config

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
HONEST = "registry-1.honest.test"


@asynccontextmanager
async def serving(handler: Handler, **settings: Any) -> AsyncIterator[int]:
    """Serves on loopback and gives the port."""
    server = web.Server(handler, access_log=None, handler_cancellation=True, **settings)
    runner = web.ServerRunner(server, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.fixture
async def ask() -> AsyncIterator[Callable[..., Awaitable[aiohttp.ClientResponse]]]:
    """Asks a registry for a manifest: `ask(host, "team/app/manifests/1")`."""
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(Registries(delay_seconds=0.0).answer))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(host: str, what: str, method: str = "GET") -> aiohttp.ClientResponse:
            url = f"http://127.0.0.1:{port}/v2/{what}"
            return await session.request(method, url, headers={"Host": host}, allow_redirects=False)

        yield ask


Ask = Callable[..., Awaitable[aiohttp.ClientResponse]]


async def test_honest_registries_have_every_image(ask: Ask) -> None:
    """By tag and then by digest, with the platforms that its name tells."""
    head = await ask(HONEST, "team-1/app-7/manifests/1", "HEAD")
    digest = head.headers["Docker-Content-Digest"]
    answer = await ask(HONEST, f"team-1/app-7/manifests/{digest}")
    entries = msgspec.json.decode(await answer.read())["manifests"]
    assert [f"linux/{each['platform']['architecture']}" for each in entries] == list(platforms_of("team-1/app-7", "1"))
    assert (await ask(HONEST, "team-1/app-7/manifests/sha256:" + "0" * 64)).status == 404
    assert (await ask(HONEST, "team-1/app-7/tags/list")).status == 404


@pytest.mark.parametrize("status", [412, 429, 503])
async def test_projects_and_hosts_refuse_as_their_names_say(ask: Ask, status: int) -> None:
    """A project of an honest registry, and a registry of an attacker; the images beside the project are served."""
    project = await ask(HONEST, f"project-{status}/app-1/manifests/1")
    host = await ask(f"r1.{status}.attack.test", "app/manifests/1")
    assert project.status == host.status == status
    assert project.headers.get("Retry-After") == ("36000" if status == 429 else None)
    assert (await ask(HONEST, "team-1/app-1/manifests/1")).status == 200


async def test_a_tag_is_denied_beside_honest_ones(ask: Ask) -> None:
    """In the same repository."""
    assert (await ask(HONEST, "shared/base/manifests/denied-1")).status == 403
    assert (await ask(HONEST, "shared/base/manifests/v1")).status == 200


async def test_attacking_registries_lead_in_circles_and_serve_hostile_indexes(ask: Ask) -> None:
    """The circle is one of many hosts, all under the attackers' zone."""
    redirect = await ask("r1.circle.attack.test", "app/manifests/1")
    assert redirect.status == 307
    assert redirect.headers["Location"].endswith(".circle.attack.test/v2/app/manifests/1")
    hostile = await ask("r1.hostile.attack.test", "app/manifests/1")
    assert len(msgspec.json.decode(await hostile.read())["manifests"]) == 64
    assert (await ask("r1.any.attack.test", "app/manifests/1")).status == 200


async def test_attacking_registries_hang_and_drip(ask: Ask) -> None:
    """One never answers; the other begins its answer."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask("r1.hang.attack.test", "app/manifests/1"), 0.1)
    dripping = await ask("r1.drip.attack.test", "app/manifests/1")
    assert await dripping.content.read(1) == b" "
    dripping.close()


def query(name: str) -> bytes:
    """A query for the IPv4 addresses of a name (RFC 1035)."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


@pytest.mark.parametrize(
    ("name", "address", "code"),
    [
        ("registry-2.honest.test", HONEST_REGISTRIES[1], 0),
        ("r1.hang.attack.test", ATTACKING_REGISTRY, 0),
        ("r1.failing.attack.test", "", 2),
        ("example.com", "", 3),
    ],
)
async def test_the_name_server_answers(name: str, address: str, code: int) -> None:
    """With one record, or with a code and none."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        await loop.sock_connect(client, transport.get_extra_info("sockname"))
        await loop.sock_sendall(client, query(name))
        answer = await asyncio.wait_for(loop.sock_recv(client, 512), 5)
    transport.close()
    number, flags, _, records = struct.unpack_from(">HHHH", answer)
    assert (number, flags & 0xF, records) == (7, code, int(bool(address)))
    assert not address or answer[-4:] == socket.inet_aton(address)


async def test_the_api_server_tells_watchers_of_pending_pods() -> None:
    """Of those before the watch and those after it; nodes come as a list."""
    async with serving(ApiServer(3).answer) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        await session.post(PODS, data=b'{"n":1}\n{"n":2}')
        watch = await session.get("/api/v1/pods", params={"watch": "true", "timeoutSeconds": "60"})
        lines = [await watch.content.readline() for _ in range(2)]
        await session.post(PODS, data=b'{"n":3}')
        lines.append(await watch.content.readline())
        watch.close()
        assert [msgspec.json.decode(line)["object"]["n"] for line in lines] == [1, 2, 3]
        nodes = msgspec.json.decode(await (await session.get("/api/v1/nodes")).read())
        assert len(nodes["items"]) == 3
        assert (await session.get("/api/v1/secrets")).status == 404


async def test_the_large_secret_has_as_many_logins_as_are_read() -> None:
    """The service does not turn it away for its length."""
    async with serving(ApiServer(1).answer) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        answer = await session.get("/api/v1/namespaces/besieger-1/secrets/large-1")
        packed = msgspec.json.decode(await answer.read(), type=dict[str, Any])["data"][".dockerconfigjson"]
    logins = decode_docker_config(msgspec.json.decode(f'"{packed}"', type=bytes), most=256)
    assert len(packed) <= 256 * 1024 // 3 * 4 + 4
    assert (len(logins.logins), logins.left_out) == (256, ENTRIES - 256)


async def test_a_caller_replaces_a_connection_that_was_closed_while_idle() -> None:
    """As Go's clients do; nobody hears of it."""
    peers = list[object]()

    async def answer(request: web.BaseRequest) -> web.Response:
        peers.append(request.transport)
        if request.path == "/slow":
            await asyncio.sleep(10)
        return web.Response(body=await request.read(), status=418 if request.path == "/teapot" else 200)

    async with serving(answer) as port:
        caller = Caller("127.0.0.1", port)
        assert await caller.ask("/", b"one", 5) == b"one"
        assert await caller.ask("/", b"two", 5) == b"two"
        assert peers[0] is peers[1]
        cast("asyncio.Transport", peers[1]).abort()
        assert await caller.ask("/", b"three", 5) == b"three"
        assert peers[2] is not peers[1]
        with pytest.raises(CallFailed, match="status 418"):
            await caller.ask("/teapot", b"", 5)
        with pytest.raises(CallFailed, match="timed out"):
            await caller.ask("/slow", b"", 0.05)
        caller.close()
    with pytest.raises(CallFailed, match="ConnectionRefusedError"):
        await caller.ask("/", b"", 5)


def hold_the_loop() -> None:
    """Holds the event loop for a while."""
    time.sleep(0.15)


async def test_the_watch_notes_who_holds_the_event_loop(tmp_path: Path) -> None:
    """For how long, and in which function."""
    path = tmp_path / "holds"
    with LoopWatch(path):
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(hold_the_loop)
        await asyncio.sleep(0.05)
    worst = max(
        (each for each in read_records(path) if isinstance(each, HoldRecord)), key=lambda each: each.held_seconds
    )
    assert worst.held_seconds + worst.waited_seconds >= 0.14
    assert worst.cause.endswith("test_siege.py:hold_the_loop")


async def test_late_timers_are_noted() -> None:
    """Once a second."""
    noted: asyncio.Queue[DelayRecord] = asyncio.Queue()
    noting = asyncio.create_task(note_delays("generator", noted.put_nowait))
    record = await asyncio.wait_for(noted.get(), 10)
    noting.cancel()
    assert record.who == "generator"
    assert record.late_seconds
    assert min(record.late_seconds) >= 0


def test_without_a_control_group_the_command_is_run_as_it_is(tmp_path: Path) -> None:
    """With one, the process enters it before the command's first byte."""
    assert MemoryLimit("none").command(["true"]) == ["true"]
    entering = MemoryLimit("v2", tmp_path).command(["sleep", "100"])
    assert entering[0] == "sh"
    assert entering[-3:] == [str(tmp_path / "cgroup.procs"), "sleep", "100"]


def test_processes_that_are_left_in_a_control_group_are_killed(tmp_path: Path) -> None:
    """Those of this group alone, of which one may have ended meanwhile."""
    limit = MemoryLimit("v2", tmp_path)
    with subprocess.Popen(limit.command(["sleep", "100"])) as process:
        while not (tmp_path / "cgroup.procs").exists() or not (tmp_path / "cgroup.procs").read_text():
            time.sleep(0.01)
        assert (tmp_path / "cgroup.procs").read_text() == f"{process.pid}\n"
        limit.kill_all()
        assert process.wait(10) == -signal.SIGKILL
    limit.kill_all()
    MemoryLimit("none").kill_all()
