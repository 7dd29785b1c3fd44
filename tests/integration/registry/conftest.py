"""A client under test, its clock, and what servers say to it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import aiohttp
import pytest
from aiohttp import web

from extender.credentials.keyring import Credential, CredentialId
from extender.images.reference import ImageReference, parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.registry_client import RegistryClient
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from testbed.faulty_registry import Fault
from testbed.images import build_index

MakeClient = Callable[..., RegistryClient]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANN = Credential("ann", "pa:ss", CredentialId("ann"))
INDEX = build_index(["linux/amd64", "linux/arm64"])
APP = "team/app"
# The registries of these tests, and the servers they point to, are on this host, which the operator's settings allow.
ON_LOOPBACK = AddressGuard(allow=["*", "127.0.0.1", "localhost"])


def app_at(registry: EmbeddedRegistry, path: str = APP) -> ImageReference:
    registry.add(path, "1", INDEX)
    return parse_reference(f"{registry.host}/{APP}:1")


def answers(status: int = 200, headers: Mapping[str, str] | None = None, body: bytes | str = b"") -> Fault:
    async def fault(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=body)

    return fault


def redirects_to(root: str) -> Fault:
    async def fault(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{root}{request.path}"})

    return fault


async def stall(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()  # until the client hangs up, which cancels the handler
    raise AssertionError("unreachable")


@contextlib.asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that says what comes to mind, at the host that is given; ends when every talk has ended."""
    talks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    async with await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*talks)


@contextlib.contextmanager
def deaf_host() -> Iterator[str]:
    """A host that takes no connection and refuses none: its queue is full, and the kernel drops what else comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(guard=ON_LOOPBACK) as opened:
        yield opened


@pytest.fixture
def make_client(session: aiohttp.ClientSession, clock: Clock) -> MakeClient:
    def make(
        *plain_http: str,
        timeout_seconds: float = 10.0,
        over: aiohttp.ClientSession = session,
    ) -> RegistryClient:
        return RegistryClient(
            over,
            timeout_seconds=timeout_seconds,
            plain_http=frozenset(plain_http),
            machine=THIS_MACHINE._replace(clock=clock, wall_clock=lambda: 1_700_000_000.0, random=float),
        )

    return make
