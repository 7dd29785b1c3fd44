"""Leads the API server to Services of a cluster whose pods are processes of this machine, in place of kube-proxy.

kube-apiserver asks an HTTP proxy on a Unix socket for each connection into the cluster, as it asks konnectivity's in a
managed cluster (`egress_selection`). The proxy connects it with a process on loopback.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from testbed.objects import KubernetesObject

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16
HEAD_SECONDS = 5.0
_TARGET = re.compile(rb"CONNECT (?P<host>\S+):(?P<port>\d+) HTTP/1\.1\r\n")

Locate = Callable[[str, int], Awaitable[int | None]]
"""Returns the port on loopback of a pod behind that address and port of a Service; None if no pod is ready."""


def egress_selection(socket: Path) -> KubernetesObject:
    """Returns the EgressSelectorConfiguration by which kube-apiserver uses the proxy at that socket."""
    transport = {"uds": {"udsName": str(socket)}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
        ],
    }


@asynccontextmanager
async def open_service_proxy(socket: Path, locate: Locate) -> AsyncIterator[None]:
    """Runs the proxy at that socket inside the block. Connections that are open at its end are reset."""
    carried: set[asyncio.Task[None]] = set()
    ends: set[asyncio.StreamWriter] = set()

    async def carry(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        ends.add(client_out)
        try:
            port = await _located(client_in, locate)
            if port is None:
                raise ConnectionRefusedError
            server_in, server_out = await asyncio.open_connection(LOOPBACK, port)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            client_out.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            client_out.close()
            ends.discard(client_out)
            return
        ends.add(server_out)
        client_out.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_pump(client_in, server_out), _pump(server_in, client_out))
        ends.difference_update((client_out, server_out))

    def begin(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(carry(client_in, client_out))
        carried.add(task)
        task.add_done_callback(carried.discard)

    server = await asyncio.start_unix_server(begin, socket)
    try:
        yield
    finally:
        server.close()
        for end in ends:
            end.transport.abort()
        for task in carried:  # those that still read a head, or look for a pod
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)
        await server.wait_closed()


async def _located(reader: asyncio.StreamReader, locate: Locate) -> int | None:
    """Reads the head of a request; returns the port on loopback that it leads to, or None."""
    async with asyncio.timeout(HEAD_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        found = _TARGET.match(head)
        return await locate(found["host"].decode(), int(found["port"])) if found else None


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()  # bytes written already are still sent
