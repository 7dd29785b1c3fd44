"""A control group for a process and its children, as a container has it, if it can be made.

It limits memory, and puts the process before what else runs on this machine. Without it only the resident memory is
told.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.nodes.cgroups import Cgroup

LIMIT_BYTES = 512 << 20  # limits.memory of the shipped manifests
_FILES = {  # of both versions
    "memory.max": LIMIT_BYTES,
    "memory.limit_in_bytes": LIMIT_BYTES,
    "cpu.weight": 10_000,
    "cpu.shares": 100_000,
}
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


@contextlib.contextmanager
def control_groups() -> Iterator[list[Path]]:
    """Makes the group, and removes it at the end; yields its folders that limit something."""
    with contextlib.ExitStack() as stack:
        folders: list[Path] = []
        with contextlib.suppress(OSError):  # it needs root
            folders = stack.enter_context(Cgroup("siege")).folders
        yield [folder for folder in folders if sum(_limit(folder / name, value) for name, value in _FILES.items())]


def limits_memory(folders: Sequence[Path]) -> bool:
    """Whether one of the folders has the limit."""
    files = [folder / name for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    return any(file.exists() and file.read_text().strip() == str(LIMIT_BYTES) for file in files)


def contained(command: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Returns the command that runs `command` in these folders' groups from its first byte on."""
    return ["sh", "-c", _ENTER, "sh", *(str(folder / "cgroup.procs") for folder in folders), "--", *command]


def _limit(file: Path, value: int) -> bool:
    """Writes a limit, if its controller is there; returns whether it is."""
    try:
        file.write_text(str(value))
    except OSError:
        return False
    return True
