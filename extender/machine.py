"""What a service takes from the machine that it runs on, besides its event loop and its files."""

import random
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

BACKLOG = 1024


class Machine(NamedTuple):
    """Clocks, chance, the host's name and listening sockets. A simulation has others than `THIS_MACHINE`."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    random: Callable[[], float]
    """Numbers from 0 up to 1."""
    token_bytes: Callable[[int], bytes]
    """So many bytes that nobody can guess."""
    host_name: str
    bind: Callable[[str, int], socket.socket]
    """Listens at an address: see `bind`."""


def bind(host: str, port: int) -> socket.socket:
    """Listens at `host:port`; port 0 takes a free one. Raises OSError.

    An empty host is every address of the machine, of IPv4 and of IPv6 as far as it has them. A name is its address of
    IPv4.
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=both, backlog=BACKLOG)


THIS_MACHINE = Machine(
    clock=time.monotonic,
    wall_clock=time.time,
    random=random.random,
    token_bytes=secrets.token_bytes,
    host_name=socket.gethostname(),
    bind=bind,
)
