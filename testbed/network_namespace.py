"""Network namespaces for one thread and what it starts: programs that listen on all addresses are reached by nobody.

Nothing of the machine's network changes, and a namespace ends with the last process in it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


class NamespaceMissing(Exception):
    """The namespace cannot be made here; the message says why in one line."""


@contextmanager
def own_network() -> Iterator[None]:
    """Moves this thread into a network namespace that has nothing but loopback, until the end of the block.

    Sockets that exist keep their namespace. Processes and threads started in the block are in the new one, and stay
    there. Raises NamespaceMissing.
    """
    with _moved("unshare", _CLONE_NEWNET):
        _start_loopback()
        yield


@contextmanager
def network_of(process: int) -> Iterator[None]:
    """Moves this thread into the network namespace of that process, until the end of the block.

    Sockets that are made in the block stay there. Raises NamespaceMissing, and OSError if the process has ended.
    """
    with Path(f"/proc/{process}/ns/net").open("rb") as inside, _moved("setns", inside.fileno(), _CLONE_NEWNET):
        yield


@contextmanager
def _moved(name: str, *arguments: int) -> Iterator[None]:
    """Moves this thread by that function of the C library, and back at the end of the block."""
    if sys.platform != "linux":
        raise NamespaceMissing("a network namespace needs Linux")
    with Path("/proc/thread-self/ns/net").open("rb") as outside:
        _call(name, *arguments)
        try:
            yield
        finally:
            _call("setns", outside.fileno(), _CLONE_NEWNET)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _call(name: str, *arguments: int) -> None:
    """Calls a function of the C library that Python 3.11 lacks."""
    if ctypes.CDLL(None, use_errno=True)[name](*arguments) != 0:
        why = os.strerror(ctypes.get_errno())
        raise NamespaceMissing(f"a network namespace needs root with CAP_SYS_ADMIN ({name}: {why})")
