"""Leads the API server to Services of a cluster whose pods are processes of this machine, in place of kube-proxy.

kube-apiserver asks an HTTP proxy on a Unix socket for each connection into the cluster, as it asks konnectivity's in a
managed cluster (`egress_selection`). The proxy connects it with a process on loopback.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from testbed.objects import KubernetesObject
from testbed.tcp_proxy import LOOPBACK, Ends, open_relay

HEAD_SECONDS = 5.0
_TARGET = re.compile(rb"CONNECT (?P<host>\S+):(?P<port>\d+) HTTP/1\.1\r\n")

Locate = Callable[[str, int], Awaitable[int | None]]
"""Returns the port on loopback of a pod behind that address and port of a Service; None if no pod is ready."""


def egress_selection(path: Path) -> KubernetesObject:
    """Returns the EgressSelectorConfiguration by which kube-apiserver uses the proxy at that socket."""
    transport = {"uds": {"udsName": str(path)}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
        ],
    }


@asynccontextmanager
async def open_service_proxy(path: Path, locate: Locate) -> AsyncIterator[None]:
    """Runs the proxy at that socket inside the block. Connections that are open at its end are reset."""

    async def connect(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> Ends:
        try:
            port = await _located(client_in, locate)
            if port is None:
                raise ConnectionRefusedError
            ends = await asyncio.open_connection(LOOPBACK, port)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            client_out.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            raise ConnectionRefusedError from exc
        client_out.write(b"HTTP/1.1 200 OK\r\n\r\n")
        return ends

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    async with open_relay(listening, connect):
        yield


async def _located(reader: asyncio.StreamReader, locate: Locate) -> int | None:
    """Reads the head of a request; returns the port on loopback that it leads to, or None."""
    async with asyncio.timeout(HEAD_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        found = _TARGET.match(head)
        return await locate(found["host"].decode(), int(found["port"])) if found else None
