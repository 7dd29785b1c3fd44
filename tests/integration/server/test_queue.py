"""The kernel's queue of connections that a listener has not accepted, with real sockets."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from extender.server.http import REFUSALS
from testbed.eventually import eventually
from tests.integration.server.raw_http import port_of
from tests.integration.server.test_limits import Scene, head_of


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        yield Scene(stack, tmp_path)


async def test_connections_in_the_queue_are_answered_when_the_listener_closes(scene: Scene) -> None:
    """Who has connected and sent its request before the end has its answer."""
    await scene.open()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket()) for _ in range(10)]
        for each in waiting:
            each.connect(("127.0.0.1", port_of(scene.listener)))  # in the kernel; the event loop has no turn meanwhile
            each.sendall(head_of(4) + b"wait")
        await scene.listener.close()
        for each in waiting:
            each.settimeout(5)
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_listener_without_descriptors_waits_for_them(scene: Scene) -> None:
    """The connection stays in the kernel's queue, and is answered when there are descriptors again."""
    await scene.open()
    before = REFUSALS["descriptors"].value
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            client.connect(("127.0.0.1", port_of(scene.listener)))
            client.sendall(head_of(1) + b"x")
            await eventually(lambda: REFUSALS["descriptors"].value > before)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.setblocking(False)
        answered = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 5)
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert REFUSALS["descriptors"].value == before + 1
