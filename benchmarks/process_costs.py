"""Reads from proc(5) what a process has used so far: processor time, memory, bytes read. Linux only."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which may hold anything but ends with the last ")".
_PARENT, _USED = 1, slice(11, 13)


class ResidentMemory(msgspec.Struct, frozen=True):
    """Resident memory now and at its peak, in megabytes of 1,000,000 bytes."""

    now_megabytes: float
    most_megabytes: float


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of all its threads, in steps of 10 ms. Raises OSError if the process has ended."""
    return sum(map(int, _fields(pid)[_USED])) / _TICKS_PER_SECOND


def waited_seconds(pid: int) -> float:
    """Returns for how long its main thread was ready to run while others had the core. Raises OSError as above."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def children(pid: int) -> Iterator[int]:
    """Yields the ids of its children, of their children, and so on."""
    parents = dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(folder.name)] = int(_fields(int(folder.name))[_PARENT])
    family = [pid]
    for member in family:
        family += (child for child, parent in parents.items() if parent == member)
    yield from family[1:]


def memory(pid: int) -> ResidentMemory:
    """Returns its resident memory. Raises OSError if the process has ended."""
    status = _numbers(Path(f"/proc/{pid}/status"))
    return ResidentMemory(status["VmRSS"] * 1024 / 1e6, status["VmHWM"] * 1024 / 1e6)


def bytes_read(pid: int) -> int:
    """Returns how many bytes it has read from files and sockets. Raises OSError if the process has ended."""
    return _numbers(Path(f"/proc/{pid}/io"))["rchar"]


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _numbers(path: Path) -> dict[str, int]:
    """Returns the lines whose value begins with a number."""
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    found = ((name, value.split()) for name, _, value in pairs)
    return {name: int(words[0]) for name, words in found if words and words[0].isdigit()}
