"""The bounds within which a fetcher is: of its memory, of its share of the processor, and of what it leaves behind.

The kernel holds them where it can. Nothing here frees anything: over a bound the process ends, and another begins.
"""

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from asyncio import sslproto
from pathlib import Path
from typing import NoReturn

OVER_MEMORY = 70
"""The exit status of a fetcher that became too large."""

_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.05
_NICE = 5
_TLS_BYTES = 16 << 10
_STACK_BYTES = 256 << 10  # of a thread; the kernel counts stacks whole in RLIMIT_DATA
# Besides what is resident: stacks of threads, and what the allocator has mapped and not used.
_MAPPED_BYTES = 192 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN_MEMORY = Path("/proc/self/statm")


def end_with(parent: int) -> None:
    """Has the kernel kill this process when the thread ends that started it, which `parent` did; whatever it does.

    Linux alone has that.
    """
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def bound_tls() -> None:
    """Bounds what TLS reads at once, for which each connection of this process keeps room.

    asyncio has 256 KB, which are 128 MB for as many connections as there may be, used and idle, and no public way to
    set it. With 16 KB, as a record of TLS has, a connection takes 80 KB in all.
    """
    sslproto.SSLProtocol.max_size = _TLS_BYTES


def stay_within(most_bytes: int, is_asked: threading.Event) -> None:
    """Bounds this process from now on: it ends by `end_too_large` when more than `most_bytes` are resident.

    `is_asked` is set while it has something to do, without which nothing grows.
    """
    threading.stack_size(_STACK_BYTES)
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError, OSError):  # a limit that is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes + _MAPPED_BYTES, hard))
    threading.Thread(target=_watch, args=(most_bytes, is_asked), daemon=True).start()


def resident_bytes() -> int:
    """Returns how much memory of this process is resident; 0 where the system does not say."""
    try:
        return int(_OWN_MEMORY.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def end_too_large() -> NoReturn:
    """Ends this process, and says why by its exit status."""
    os._exit(OVER_MEMORY)


def _watch(most_bytes: int, is_asked: threading.Event) -> None:
    while resident_bytes() <= most_bytes:
        is_asked.wait()
        time.sleep(_WATCH_SECONDS)
    end_too_large()


def kill_session(leader: int) -> None:
    """Kills all processes of a session but the caller's own: a fetcher, and the programs that it has started.

    Goes through all processes that the system shows. Until the leader is waited for, no other has its number.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
