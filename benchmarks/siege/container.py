"""Control groups for a process and its children, as a container has them, if any can be made.

They limit memory, and put the process before what else runs on this machine. Without them only the resident memory is
judged. Groups of both versions are made below those that this process is in.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LIMIT_BYTES = 512 << 20  # limits.memory of the shipped manifests
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'
_ROOT = Path("/sys/fs/cgroup")
_GROUPS = (  # controller (of version 2: none), where its groups are, and the files to write
    ("", _ROOT, {"memory.max": LIMIT_BYTES, "cpu.weight": 10_000}),
    ("memory", _ROOT / "memory", {"memory.limit_in_bytes": LIMIT_BYTES}),
    ("cpu", _ROOT / "cpu", {"cpu.shares": 100_000}),
)


@contextlib.contextmanager
def control_groups() -> Iterator[list[Path]]:
    """Makes control groups, and removes them at the end, when no process is left in them."""
    folders = [folder for group in _GROUPS if (folder := _made(*group))]
    try:
        yield folders
    finally:
        for folder in folders:
            folder.rmdir()


def limits_memory(folders: Sequence[Path]) -> bool:
    """Whether one of the groups has the limit."""
    files = [folder / name for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    return any(file.exists() and file.read_text().strip() == str(LIMIT_BYTES) for file in files)


def contained(command: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Returns the command that runs `command` in these groups from its first byte on."""
    return ["sh", "-c", _ENTER, "sh", *(str(folder / "cgroup.procs") for folder in folders), "--", *command]


def _made(controller: str, root: Path, files: Mapping[str, int]) -> Path | None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [
        path.lstrip("/") for _, names, path in (line.split(":", 2) for line in lines) if controller in names.split(",")
    ]
    if not paths:
        return None
    parent = root / paths[0] if (root / paths[0]).is_dir() else root
    folder = parent / f"siege-{secrets.token_hex(4)}"
    if not (parent / "cgroup.procs").exists():  # it holds other hierarchies, and is no group
        return None
    with contextlib.suppress(OSError):
        folder.mkdir()
        for name, value in files.items():
            with contextlib.suppress(OSError):  # the controller is not there
                (folder / name).write_text(str(value))
        return folder
    return None
