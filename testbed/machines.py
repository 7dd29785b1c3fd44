"""The machine of a program in a test: that of the memory network, or the real one."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from extender.machine import THIS_MACHINE, Machine
from testbed.memory_network import MemoryLoop, Network


def machine_in(network: Network, host_name: str) -> Machine:
    """A machine whose clocks, chance and sockets are those of the network."""
    return Machine(
        clock=network.loop.time,
        wall_clock=network.wall_clock,
        random=network.chance.random,
        token_bytes=network.chance.randbytes,
        host_name=host_name,
        bind=cast("Callable[[str, int], socket.socket]", network.bind),
    )


def running_machine() -> Machine:
    """The machine of the running loop."""
    loop = asyncio.get_running_loop()
    return machine_in(loop.network, "test") if isinstance(loop, MemoryLoop) else THIS_MACHINE
