"""The parts of the siege do what they are told: its registries, name server, API server, calls, and the watch."""

import asyncio
import base64
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from benchmarks.siege import service
from benchmarks.siege.api_server import ENTRIES, LOGIN, ApiServer
from benchmarks.siege.calls import CallFailed, call, new_session
from benchmarks.siege.container import contained
from benchmarks.siege.images import platforms_of
from benchmarks.siege.name_server import NameServer, resolution_of
from benchmarks.siege.network import ATTACKING_REGISTRY, HONEST_REGISTRIES, MIRROR, MIRRORED, UPSTREAMS
from benchmarks.siege.registries import Registries
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
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))

        async def ask(host: str, what: str, method: str = "GET", **headers: str) -> aiohttp.ClientResponse:
            url = f"http://127.0.0.1:{port}/v2/{what}"
            return await session.request(method, url, headers={"Host": host, **headers}, allow_redirects=False)

        yield ask


Ask = Callable[..., Awaitable[aiohttp.ClientResponse]]


async def test_honest_registries_have_every_image(ask: Ask) -> None:
    """By tag and then by digest, with the platforms that its name tells."""
    head = await ask(HONEST, "team-2/app-7/manifests/1", "HEAD")
    digest = head.headers["Docker-Content-Digest"]
    answer = await ask(HONEST, f"team-2/app-7/manifests/{digest}")
    entries = msgspec.json.decode(await answer.read())["manifests"]
    assert [f"linux/{each['platform']['architecture']}" for each in entries] == list(platforms_of("team-2/app-7", "1"))
    assert (await ask(HONEST, "team-2/app-7/manifests/sha256:" + "0" * 64)).status == 404
    assert (await ask(HONEST, "team-2/app-7/tags/list")).status == 404


async def test_private_images_need_the_login_of_the_pull_secret(ask: Ask) -> None:
    """Except from the mirror, which no login is shown to."""
    assert (await ask(HONEST, "team-1/app-7/manifests/1")).status == 401
    login = base64.b64encode(LOGIN.encode()).decode()
    assert (await ask(HONEST, "team-1/app-7/manifests/1", Authorization=f"Basic {login}")).status == 200
    assert (await ask(MIRROR, f"team-1/app-7/manifests/1?ns={MIRRORED}")).status == 200


@pytest.mark.parametrize("status", [412, 429, 503])
async def test_projects_and_hosts_refuse_as_their_names_say(ask: Ask, status: int) -> None:
    """A project of an honest registry, and a registry of an attacker; the images beside the project are served."""
    project = await ask(HONEST, f"project-{status}/app-1/manifests/1")
    host = await ask(f"r1.{status}.attack.test", "app/manifests/1")
    assert project.status == host.status == status
    assert project.headers.get("Retry-After") == ("36000" if status == 429 else None)
    assert (await ask(HONEST, "team-2/app-1/manifests/1")).status == 200


async def test_honest_registries_refuse_a_tag_and_names_that_are_made_up(ask: Ask) -> None:
    """Beside an image in the same repository."""
    assert (await ask(HONEST, "shared/base/manifests/denied-1")).status == 403
    assert (await ask(HONEST, "shared/base/manifests/v1")).status == 200
    assert (await ask(HONEST, "made-up-7/app/manifests/1")).status == 500


async def test_attacking_registries_lead_in_circles(ask: Ask) -> None:
    """Of many hosts: some redirect, others send the client there for a token, and from there to another one."""
    answers = [await ask(f"r{number}.circle.attack.test", "app/manifests/1") for number in range(20)]
    assert {answer.status for answer in answers} == {307, 401}
    for answer in answers:
        following = answer.headers.get("Location") or answer.headers["WWW-Authenticate"]
        assert ".circle.attack.test/" in following


@pytest.mark.parametrize("host", ["r1.hang.attack.test", HONEST, MIRROR])
async def test_attacking_registries_hang(ask: Ask, host: str) -> None:
    """At hosts of their own, in a project of an honest one, and behind the mirror."""
    what = f"project-hang/app/manifests/1?ns={UPSTREAMS[0]}"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask(host, what), 0.1)


@pytest.mark.parametrize(
    ("kind", "bytes_read"), [("drip", b" "), ("stop", b" " * ((4 << 20) - 1)), ("chunks", b"  "), ("fat", b'{"schema')]
)
async def test_attacking_registries_send_bodies_that_do_not_end(ask: Ask, kind: str, bytes_read: bytes) -> None:
    """They drip, stop before the end, come in chunks of one byte; or are large. HEAD requests are answered."""
    host = f"r4.{kind}.attack.test"
    assert (await ask(host, "app/manifests/1", "HEAD")).headers["Docker-Content-Digest"].startswith("sha256:")
    answer = await ask(host, "app/manifests/1")
    assert await answer.content.readexactly(len(bytes_read)) == bytes_read
    answer.close()


@pytest.mark.parametrize(("kind", "line"), [("103", b"HTTP/1.1 103 Early Hints"), ("chunks", b"1;" + b"x" * 100)])
async def test_attacking_registries_send_heads_and_extensions_without_end(kind: str, line: bytes) -> None:
    """As fast as they are read."""
    async with serving(Registries(delay_seconds=0.0).answer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v2/app/manifests/1 HTTP/1.1\r\nHost: r1.%b.attack.test\r\n\r\n" % kind.encode())
        received = b"".join([await reader.read(65536) for _ in range(40)])
        writer.transport.abort()
    assert line in received
    assert len(received) > 500_000
    assert not received.endswith(b"\r\n0\r\n\r\n")


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
        ("mirrored.honest.test", "", 3),
    ],
)
async def test_the_name_server_answers(name: str, address: str, code: int) -> None:
    """With one record, or with a code and none; in some zones late, or never."""
    assert resolution_of("r1.silent.attack.test").after_seconds is None
    assert (resolution_of("r1.late.attack.test").after_seconds or 0) > 1
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
    """Nodes come as a list."""
    async with serving(ApiServer(3).answer) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        watch = await session.get("/api/v1/pods", params={"watch": "true", "timeoutSeconds": "60"})
        await session.post("/siege/pods", data=b'{"n":1}')
        assert msgspec.json.decode(await watch.content.readline())["object"] == {"n": 1}
        watch.close()
        nodes = msgspec.json.decode(await (await session.get("/api/v1/nodes")).read())
        assert len(nodes["items"]) == 3


async def test_the_large_secret_has_as_many_logins_as_are_read() -> None:
    """The service does not turn it away for its length."""
    async with serving(ApiServer(1).answer) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        answer = await session.get("/api/v1/namespaces/besieger-1/secrets/large-1")
        packed = msgspec.json.decode(await answer.read(), type=dict[str, Any])["data"][".dockerconfigjson"]
    logins = decode_docker_config(msgspec.json.decode(f'"{packed}"', type=bytes), most=256)
    assert len(packed) <= 256 * 1024 // 3 * 4 + 4
    assert (len(logins.logins), logins.left_out) == (256, ENTRIES - 256)


async def test_a_call_replaces_a_connection_that_was_closed_while_idle() -> None:
    """As Go's clients do; nobody hears of it."""
    peers = list[object]()

    async def answer(request: web.BaseRequest) -> web.Response:
        peers.append(request.transport)
        if request.path == "/slow":
            await asyncio.sleep(10)
        return web.Response(body=await request.read(), status=418 if request.path == "/teapot" else 200)

    async with new_session("127.0.0.1") as session:
        async with serving(answer) as port:
            url = f"http://127.0.0.1:{port}"
            assert await call(session, url, b"one", 5) == b"one"
            assert await call(session, url, b"two", 5) == b"two"
            assert peers[0] is peers[1]
            cast("asyncio.Transport", peers[1]).abort()
            assert await call(session, url, b"three", 5) == b"three"
            assert peers[2] is not peers[1]
            with pytest.raises(CallFailed, match="status 418"):
                await call(session, f"{url}/teapot", b"", 5)
            with pytest.raises(CallFailed, match="timed out"):
                await call(session, f"{url}/slow", b"", 0.05)
        with pytest.raises(CallFailed, match="ClientConnectorError"):
            await call(session, url, b"", 5)


SERVICE = """
import http.server, subprocess, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(0.3 if self.path == "/livez" else 0)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
child = subprocess.Popen([sys.executable, "-c", "x = b'x' * 30_000_000; input()", "extender.fetcher"], stdin=-1)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_the_watch_measures_the_service_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long its loop is held, and memory; it kills fetchers, and runs a service that ended again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(service, "OPERATIONS_PORT", port)
    command = [sys.executable, "-c", SERVICE, str(port)]
    with service.BesiegedService(command, tmp_path / "log", min(os.sched_getaffinity(0))) as watched:
        wait_for(lambda: watched.both_megabytes > watched.megabytes + 30)
        wait_for(lambda: watched.hold_seconds > 0)
        assert 0.25 < watched.hold_seconds < 5
        assert watched.livez_seconds >= 0.3
        assert watched.processor_seconds()[1] > 0
        assert watched.kill_fetchers() == 1
        assert watched.deaths == 0
        os.kill(watched.pid, signal.SIGKILL)
        wait_for(lambda: watched.deaths == 1 and watched.kill_fetchers() == 1)
        watched.forget()
        assert (watched.deaths, watched.both_megabytes) == (0, 0)


def wait_for(holds: Callable[[], bool]) -> None:
    """Returns when it is so."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_enters_its_control_groups_before_the_first_byte_of_its_program(tmp_path: Path) -> None:
    """All of them; without any the program is run as it is."""
    groups = [tmp_path / "memory", tmp_path / "cpu"]
    for group in groups:
        group.mkdir()
    files = [str(group / "cgroup.procs") for group in groups]
    done = subprocess.run(contained(["cat", *files], groups), stdout=-1, check=True, text=True)
    assert len(set(done.stdout.split())) == 1
    assert len(done.stdout.split()) == 2
    assert subprocess.run(contained(["echo", "--", "-n"], []), stdout=-1, check=True).stdout == b"-- -n\n"
