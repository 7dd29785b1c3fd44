"""A memory limit for one process and its children, as a container has one: a control group, if one can be made.

Control groups of both versions are made below the one that this process is in, and removed at the end. Where none can
be made the limit is not enforced, and only the resident memory is judged.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

SHIPPED_BYTES = 512 << 20  # limits.memory of the shipped manifests
_ROOT = Path("/sys/fs/cgroup")
_ENTER = ["sh", "-c", 'echo $$ > "$0" && exec "$@"']


class MemoryLimit(msgspec.Struct, frozen=True):
    """The limit that is in force: `words` say by what; `folder` is the control group, None if there is none."""

    words: str
    folder: Path | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs `command` under the limit from its first byte on."""
        if self.folder is None:
            return list(command)
        return [*_ENTER, str(self.folder / "cgroup.procs"), *command]

    def kill_all(self) -> None:
        """Kills the processes that are left in the control group, such as programs that the service has run."""
        if self.folder:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def memory_limit(limit_bytes: int = SHIPPED_BYTES) -> Iterator[MemoryLimit]:
    """Makes a control group with the limit; kills its processes at the end and removes it."""
    limit = (
        _version_2(limit_bytes)
        or _version_1(limit_bytes)
        or MemoryLimit("none, since no control group can be made: only RSS is judged")
    )
    try:
        yield limit
    finally:
        if limit.folder:
            limit.kill_all()
            _remove(limit.folder)


def _version_2(limit_bytes: int) -> MemoryLimit | None:
    parent = _parent("0::", _ROOT)
    return _made(parent, "memory.max", "cgroup v2 memory.max", limit_bytes) if parent else None


def _version_1(limit_bytes: int) -> MemoryLimit | None:
    parent = _parent(":memory:", _ROOT / "memory")
    file = "memory.limit_in_bytes"
    return _made(parent, file, f"cgroup v1 {file}", limit_bytes) if parent else None


def _parent(mark: str, root: Path) -> Path | None:
    """Returns the folder of the group that this process is in, or the highest one that can be seen."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if mark in line:
                own = root / line.rpartition(":")[2].lstrip("/")
                return own if own.is_dir() else root
    return None


def _made(parent: Path, file: str, words: str, limit_bytes: int) -> MemoryLimit | None:
    folder = parent / f"siege-{secrets.token_hex(4)}"
    if not (parent / "cgroup.procs").exists():  # a folder that holds other hierarchies, and is none
        return None
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        with (folder / file).open("r+") as limit:
            limit.write(str(limit_bytes))
    except OSError:
        folder.rmdir()
        return None
    return MemoryLimit(f"{words} = {limit_bytes >> 20} Mi", folder)


def _remove(folder: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)
